"""Runs the modules of tests that are named. The last line is "test-python: N passed, N failed"; what is left out is
printed with its reason."""
import logging
import sys
import unittest

logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # "triton not found"


def main(names):
    suite = unittest.TestSuite()
    for name in names:
        try:
            suite.addTests(unittest.defaultTestLoader.loadTestsFromName(name))
        except unittest.SkipTest as reason:
            print(f"left out: {name}: {reason}")
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    for test, reason in result.skipped:
        print(f"left out: {test.id()}: {reason}")
    bad = len(result.failures) + len(result.errors)
    print(f"test-python: {result.testsRun - bad - len(result.skipped)} passed, {bad} failed")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
