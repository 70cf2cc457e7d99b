import json
import unittest

from package import MODELS

from fastdecode.chat import ChatTemplate
from fastdecode.errors import UsageError

# SmolLM2-135M-Instruct's, from its tokenizer_config.json.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(template, messages=(), **tokens):
    return ChatTemplate(template, tokens).render(list(messages))


class SmolLM2(unittest.TestCase):
    def test_renders_what_hugging_face_rendered(self):
        with open(MODELS / "smollm2_expected.json", encoding="utf-8") as file:
            cases = [case for case in json.load(file)["cases"] if case["name"].startswith("chat_")]
        self.assertGreater(len(cases), 0)
        for case in cases:
            question = case["prompt"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
            self.assertEqual(case["prompt"], render(SMOLLM2, [{"role": "user", "content": question}]))


class Environment(unittest.TestCase):
    """What transformers' documentation promises to templates."""

    def test_blocks_are_trimmed(self):
        self.assertEqual("a\n", render("{% if true %}\n    {% if true %}\na\n{% endif %}\n{% endif %}\n"))

    def test_special_tokens_and_functions(self):
        self.assertEqual("<s>", render("{{ bos_token }}", bos_token="<s>"))
        self.assertEqual('{"é": 1}', render("{{ {'é': 1} | tojson }}"))
        self.assertRegex(render("{{ strftime_now('%Y') }}"), r"^\d{4}$")
        self.assertEqual("0", render("{% for i in range(3) %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}"))
        self.assertEqual("x", render("{% generation %}x{% endgeneration %}"))

    def test_refusals_are_one_clear_error(self):
        with self.assertRaisesRegex(UsageError, "roles must alternate"):
            render("{{ raise_exception('roles must alternate') }}")
        with self.assertRaisesRegex(UsageError, "broken"):
            render("{% if %}")

    def test_the_sandbox_holds(self):
        for attack in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}",
                       "{{ cycler.__init__.__globals__.os.listdir('/') }}"):
            with self.assertRaises(UsageError):
                render(attack)


if __name__ == "__main__":
    unittest.main()
