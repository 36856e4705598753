"""Runs the modules of tests that are named. What fails is printed when it does, so that a run that is cut off tells.
The last line is "test-python: N passed, N failed"; what is left out is printed with its reason."""
import logging
import sys
import traceback
import unittest

logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # "triton not found"


class Result(unittest.TextTestResult):
    def say(self, test, error):
        print(f"\nfailed: {test}", file=sys.stderr)
        traceback.print_exception(*error)
        sys.stderr.flush()

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.say(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        self.say(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.say(subtest, error)

    def printErrors(self):
        """They stand above."""


def main(names):
    suite = unittest.TestSuite()
    for name in names:
        try:
            suite.addTests(unittest.defaultTestLoader.loadTestsFromName(name))
        except unittest.SkipTest as reason:
            print(f"left out: {name}: {reason}")
    result = unittest.TextTestRunner(verbosity=1, resultclass=Result).run(suite)
    for test, reason in result.skipped:
        print(f"left out: {test.id()}: {reason}")
    bad = len({getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors})
    print(f"test-python: {result.testsRun - bad - len(result.skipped)} passed, {bad} failed")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
