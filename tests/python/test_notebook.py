"""docs/python.ipynb: stored without results, run as a reader would."""
import json
import math
import os
import tempfile
import unittest

try:
    import ipykernel  # noqa: F401 (the kernel that nbclient starts)
    import nbclient
    import nbformat
    import transformers  # noqa: F401 (the notebook imports it)
    MISSING = ""
except ImportError as error:
    MISSING = f"the notebook is not run: {error}"

PATH = "docs/python.ipynb"


def cells(notebook):
    return [c for c in notebook["cells"] if c["cell_type"] == "code"]


class TestNotebook(unittest.TestCase):
    def test_has_no_results(self):
        with open(PATH, encoding="utf-8") as f:
            for cell in cells(json.load(f)):
                self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None))

    @unittest.skipIf(MISSING, MISSING)
    def test_runs(self):
        notebook = nbformat.read(PATH, as_version=4)
        here = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(":") if p]
        with tempfile.TemporaryDirectory() as folder:
            before = dict(os.environ)
            os.environ.update(PYTHONPATH=":".join(here), IPYTHONDIR=folder)
            try:
                nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
            finally:
                os.environ.clear()
                os.environ.update(before)
        if os.environ.get("NOTEBOOK_OUT"):
            nbformat.write(notebook, os.environ["NOTEBOOK_OUT"])
        results = [self.result(c) for c in cells(notebook)]
        self.assertIn("<iframe srcdoc=", results[1]["text/html"])
        self.assertIn("PyTorch, activation_memory_budget 0.2", results[2]["text/html"])
        self.assertIn("computed again", results[3]["text"])
        losses = json.loads(results[4]["text/plain"])
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[2], losses[0])
        exported, eager = json.loads(results[5]["text/plain"].replace("(", "[").replace(")", "]"))
        self.assertTrue(math.isclose(exported, eager, abs_tol=2e-5), (exported, eager))
        self.assertLess(eager, losses[2])

    @staticmethod
    def result(cell):
        """What a cell gave: its value by MIME type, and "text", what it printed."""
        out = {"text": "".join(o["text"] for o in cell["outputs"] if o["output_type"] == "stream" and o["name"] == "stdout")}
        for o in cell["outputs"]:
            if o["output_type"] == "execute_result":
                out.update(o["data"])
        return out


if __name__ == "__main__":
    unittest.main()
