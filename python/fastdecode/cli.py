"""The command `fastdecode`."""

import argparse
import json
import sys

from fastdecode import __version__, batch, generate
from fastdecode.cluster import connected
from fastdecode.errors import EXIT_DONE, FastdecodeError
from fastdecode.interrupt import Interrupt


def _add_connection(parser):
    group = parser.add_argument_group("where")
    either = group.add_mutually_exclusive_group(required=True)
    either.add_argument("--connect", metavar="ADDR", help="an S-worker's API, HOST:PORT; needs --secret_file")
    either.add_argument("--config", metavar="FILE", help="a cluster's config: it is brought up for this call, "
                        "unless it is up already")
    group.add_argument("--secret_file", metavar="FILE", help="the cluster's secret (default: as the config says)")
    group.add_argument("--build", metavar="DIR", help="with --config: the build folder whose programs to start")


def _add_text(parser):
    parser.add_argument("--tokenizer", metavar="FOLDER",
                        help="folder with tokenizer.json (default: the model's, as the server names it)")


def _add_sampling(parser):
    group = parser.add_argument_group("sampling")
    group.add_argument("--max_tokens", type=int, help="of the answer (256)")
    group.add_argument("--temperature", type=float, help="0: the likeliest token (default)")
    group.add_argument("--top_k", type=int, help="only the K likeliest tokens; 0: all (default)")
    group.add_argument("--top_p", type=float, help="only the likeliest tokens that make up P; 1: all (default)")
    group.add_argument("--seed", type=int, help="of the random draws (default: the server draws one)")
    group.add_argument("--stop_ids", type=int, nargs="+", metavar="ID", help="token ids that end the answer as well")
    group.add_argument("--ignore_eos", action="store_true", default=None,
                       help="the model's own end-of-sequence tokens do not end the answer")


def _sampling(args):
    names = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop_ids", "ignore_eos")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _stats(client, _args, _sampling, _interrupt):
    print(json.dumps(client.stats(), indent=2))
    return EXIT_DONE


def _parser():
    parser = argparse.ArgumentParser(prog="fastdecode", description="Text and token ids in and out of a FastDecode "
                                     "cluster.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fastdecode {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("generate", allow_abbrev=False, help="continue one prompt, streamed",
                                  description="Continues one prompt and prints the text as it comes.")
    command.add_argument("--prompt", help="(default: standard input)")
    command.add_argument("--chat", action="store_true", help="the prompt is a question: use the model's chat template")
    command.add_argument("--system", metavar="TEXT", help="with --chat: the system message")
    _add_text(command)
    _add_sampling(command)
    _add_connection(command)
    command.set_defaults(run=generate.run)

    command = commands.add_parser("batch", allow_abbrev=False, help="a file of requests",
                                  description="One result a line of input, however it ends; the order is free. "
                                  "Sampling flags are for requests that do not say it themselves.")
    command.add_argument("input", metavar="IN.jsonl")
    command.add_argument("output", metavar="OUT.jsonl")
    command.add_argument("--in_flight", type=int, default=0, metavar="N",
                         help="requests at the server at a time (default: twice its max_batch, at least 64)")
    _add_text(command)
    _add_sampling(command)
    _add_connection(command)
    command.set_defaults(run=batch.run)

    command = commands.add_parser("stats", allow_abbrev=False, help="the server's figures as JSON")
    _add_connection(command)
    command.set_defaults(run=_stats)
    return parser


def main(argv=None):
    args = _parser().parse_args(argv)  # exits 2 on a bad flag
    sampling = _sampling(args) if hasattr(args, "max_tokens") else {}
    try:
        with Interrupt() as interrupt, connected(
            args, f"fastdecode {args.command}", interrupt
        ) as client:
            if interrupt.signum:
                return interrupt.exit_status
            return args.run(client, args, sampling, interrupt)
    except FastdecodeError as error:
        print(f"fastdecode: {error}", file=sys.stderr)
        return error.exit_status
