import contextlib
import io
import unittest

from package import REPOSITORY  # noqa: F401

from fastdecode.demo import DEMOS, Page


class Pages(unittest.TestCase):
    def shown(self, prompt, pieces):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            page = Page(prompt)
            for piece in pieces:
                page.write(piece)
            page.write("", last=True)
        return out.getvalue()

    def test_words_survive_whatever_the_pieces(self):
        text = "she found a big  box in her room.\n\nIt was red. " * 9
        for size in (1, 3, 1000):
            shown = self.shown("One day, ", [text[i : i + size] for i in range(0, len(text), size)])
            self.assertEqual(["One", "day,", *text.split()], shown.split())
            self.assertLess(max(map(len, shown.splitlines())), 101)

    def test_a_word_that_goes_on(self):
        self.assertEqual("  The cat cats", self.shown("The cat", [" c", "ats"]))
        self.assertEqual("  The cats", self.shown("The cat", ["s"]))
        self.assertEqual("  The cat sat", self.shown("The cat ", ["sat"]))


class Demos(unittest.TestCase):
    def test_configs_are_there(self):
        for demo in DEMOS.values():
            self.assertTrue((REPOSITORY / demo.config).is_file())


if __name__ == "__main__":
    unittest.main()
