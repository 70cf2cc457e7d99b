import json
import random
import unittest

from package import MODELS

from fastdecode.errors import RequestError, UsageError
from fastdecode.text import REPLACEMENT, IncrementalDecoder, TextModel

NAMES = ("tinystories-656k", "stories260K-hf", "tiny-llama3")
ENGLISH = "Once upon a time, there was a little girl named Lily. She said:  \"Hello!\"\n\nThe end."
# Bytes of one character lie in several tokens, of two and of four bytes each.
MANY_BYTES = "Zürich — 日本語、привет 😀👩‍👩‍👧 done"
TEXTS = {"tinystories-656k": [ENGLISH], "stories260K-hf": [ENGLISH, MANY_BYTES], "tiny-llama3": [ENGLISH, MANY_BYTES]}


def models():
    return {name: TextModel(str(MODELS / name)) for name in NAMES}


class Encoding(unittest.TestCase):
    def test_bos_as_the_tokenizer_says(self):
        for name, bos in (("tinystories-656k", 1), ("stories260K-hf", 1), ("tiny-llama3", 1019)):
            ids = models()[name].encode("Once upon a time")
            self.assertEqual(bos, ids[0])
            self.assertNotIn(bos, ids[1:])
            with open(MODELS / name / "config.json", encoding="utf-8") as file:
                self.assertEqual(bos, json.load(file)["bos_token_id"])

    def test_empty_prompt(self):
        with self.assertRaisesRegex(RequestError, "empty_prompt"):
            models()["tiny-llama3"].encode("")

    def test_what_is_no_character(self):
        for text in ("a lone \ud800 surrogate", b"a byte \xff".decode("utf-8", "surrogateescape")):
            with self.assertRaises(RequestError) as raised:
                models()["tinystories-656k"].encode(text)
            self.assertEqual("bad_parameter", raised.exception.code)

    def test_no_tokenizer(self):
        with self.assertRaisesRegex(UsageError, "no tokenizer in"):
            TextModel(str(MODELS))

    def test_no_chat_template(self):
        with self.assertRaisesRegex(UsageError, "has no chat template"):
            models()["tiny-llama3"].encode_chat([{"role": "user", "content": "x"}])


class Decoding(unittest.TestCase):
    def test_round_trip(self):
        for name, model in models().items():
            for text in TEXTS[name]:
                self.assertEqual(text, model.decode(model.encode(text)))

    def test_special_tokens_are_left_out(self):
        for name, model in models().items():
            with open(MODELS / name / "config.json", encoding="utf-8") as file:
                eos = json.load(file)["eos_token_id"]
            eos = eos if isinstance(eos, list) else [eos]
            self.assertEqual(ENGLISH, model.decode(model.encode(ENGLISH) + eos), name)

    def test_a_continuation_keeps_its_leading_space(self):
        for name in ("stories260K-hf", "tiny-llama3"):  # whose words begin with their space
            model = models()[name]
            ids = model.encode("Once upon a time there was")
            spaced = [cut for cut in range(2, len(ids)) if not model.decode(ids[:cut]).endswith(" ")
                      and model.decode(ids)[len(model.decode(ids[:cut]))] == " "]
            self.assertGreater(len(spaced), 2)  # cuts before a word
            for cut in spaced:
                continuation = model.decode_continuation(ids[:cut], ids[cut:])
                self.assertEqual(" ", continuation[0], name)
                self.assertEqual(model.decode(ids), model.decode(ids[:cut]) + continuation, name)


class Incremental(unittest.TestCase):
    def pieces(self, model, prompt, ids, sizes):
        decoder = IncrementalDecoder(model, prompt)
        at, out = 0, []
        while at < len(ids):
            size = next(sizes)
            out.append(decoder.add(ids[at : at + size]))
            at += size
        return out, decoder.finish()

    def test_pieces_make_the_whole(self):
        generator = random.Random(7)
        for name, model in models().items():
            for text in TEXTS[name]:
                ids = model.encode(text)
                for cut in range(1, len(ids)):
                    prompt, rest = ids[:cut], ids[cut:]
                    if model.decode(prompt).endswith(REPLACEMENT):
                        continue  # No prompt ends inside a character.
                    sizes = iter(lambda: generator.choice((1, 1, 1, 2, 3)), 0)
                    out, end = self.pieces(model, prompt, rest, sizes)
                    self.assertEqual(text[len(model.decode(prompt)) :], "".join(out), (name, cut))
                    self.assertEqual("", end)

    def test_a_character_comes_out_whole(self):
        for name in ("stories260K-hf", "tiny-llama3"):
            model = models()[name]
            prompt = model.encode("a ")
            ids = model.encode("a 😀")[len(prompt) :]
            self.assertGreater(len(ids), 1)
            out, _ = self.pieces(model, prompt, ids, iter(lambda: 1, 0))
            self.assertEqual([""] * (len(ids) - 1) + ["😀"], out, name)

    def test_an_answer_that_breaks_off_inside_a_character(self):
        model = models()["tiny-llama3"]
        prompt = model.encode("a ")
        ids = model.encode("a 😀")[len(prompt) : -1]
        out, end = self.pieces(model, prompt, ids, iter(lambda: 1, 0))
        self.assertEqual("", "".join(out))
        self.assertEqual(REPLACEMENT, end)

    def test_nonsense_is_not_held_for_ever(self):
        model = models()["tiny-llama3"]
        prompt = model.encode("a ")
        half = model.encode("a 😀")[len(prompt)]
        out, _ = self.pieces(model, prompt, [half] * 100, iter(lambda: 1, 0))
        self.assertGreater(len("".join(out)), 80)


if __name__ == "__main__":
    unittest.main()
