#include "case.h"

#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>

namespace fastdecode::peers {
namespace {

constexpr const char* kUsage =
    "Times ggml's flash attention on the CPU for decoding; prints one JSON object.\n"
    "  --heads N --kv_heads N --head_dim N   the shape\n"
    "  --batch N --context N                 sequences, cached tokens of each; or\n"
    "  --contexts 1x16384,63x128             sequences by length (an item without x is one)\n"
    "  --threads N                           pinned to the first N CPUs allowed\n"
    "  --layers N                            to cycle over; 0: enough to leave the caches\n"
    "  --passes N                            that are measured\n"
    "  --kv_dtype f16|int8|int4              int8 is ggml's q8_0, int4 its q4_0\n"
    "  --in_turns                            print 'ready' and wait for a line on standard input before each pass\n"
    "Exit status: 0 done, 2 usage, 3 could not measure, 4 no such format.\n";

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "peer_ggml: %s (try --help)\n", what.c_str());
  std::exit(2);
}

int64_t Number(const std::string& name, const std::string& text, int64_t least) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least) {
    Fail("--" + name + ": " + text + " is not a number of at least " + std::to_string(least));
  }
  return value;
}

std::vector<Group> ParseContexts(const std::string& text) {
  std::map<int64_t, int64_t, std::greater<>> by_length;
  std::stringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t x = item.find('x');
    const int64_t sequences = x == std::string::npos ? 1 : Number("contexts", item.substr(0, x), 1);
    by_length[Number("contexts", x == std::string::npos ? item : item.substr(x + 1), 1)] += sequences;
  }
  std::vector<Group> groups;
  for (const auto& [context, sequences] : by_length) groups.push_back({sequences, context});
  if (groups.empty()) Fail("--contexts names no sequence");
  return groups;
}

}  // namespace

int64_t Case::sequences() const {
  int64_t sum = 0;
  for (const Group& g : groups) sum += g.sequences;
  return sum;
}

int64_t Case::context_tokens() const {
  int64_t sum = 0;
  for (const Group& g : groups) sum += g.sequences * g.context;
  return sum;
}

Case ParseCase(int argc, char** argv) {
  static const std::vector<std::string> names = {"heads",   "kv_heads", "head_dim", "batch",    "context",  "contexts",
                                                 "threads", "layers",   "passes",   "kv_dtype", "in_turns", "help"};
  std::vector<option> options;
  for (const std::string& name : names) {
    const bool bare = name == "help" || name == "in_turns";
    options.push_back({name.c_str(), bare ? no_argument : required_argument, nullptr, 0});
  }
  options.push_back({nullptr, 0, nullptr, 0});
  std::map<std::string, std::string> given;
  int index = 0;
  for (int got; (got = getopt_long(argc, argv, "", options.data(), &index)) != -1;) {
    if (got != 0) std::exit(2);  // getopt has said why
    given[names[static_cast<size_t>(index)]] = optarg == nullptr ? "" : optarg;
  }
  if (optind != argc) Fail(std::string("unknown argument ") + argv[optind]);
  if (given.count("help") != 0) {
    std::fputs(kUsage, stdout);
    std::exit(0);
  }
  const auto number = [&given](const std::string& name, int64_t otherwise, int64_t least = 1) {
    return given.count(name) == 0 ? otherwise : Number(name, given[name], least);
  };
  Case c;
  c.heads = number("heads", c.heads);
  c.kv_heads = number("kv_heads", c.kv_heads);
  c.head_dim = number("head_dim", c.head_dim);
  c.threads = static_cast<int>(number("threads", c.threads));
  c.layers = number("layers", c.layers, 0);
  c.passes = static_cast<int>(number("passes", c.passes));
  c.in_turns = given.count("in_turns") != 0;
  if (given.count("kv_dtype") != 0) c.kv_dtype = given["kv_dtype"];
  if (given.count("contexts") != 0) {
    if (given.count("batch") + given.count("context") != 0) Fail("--contexts takes the place of --batch and --context");
    c.groups = ParseContexts(given["contexts"]);
  } else {
    c.groups = {{number("batch", 32), number("context", 1024)}};
  }
  if (c.heads % c.kv_heads != 0) Fail("--kv_heads must divide --heads");
  return c;
}

int64_t LayersOf(const Case& c, int64_t layer_bytes) {
  if (c.layers > 0) return c.layers;
  int64_t cache = 0;
  for (const int name : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    cache = std::max<int64_t>(cache, sysconf(name));
  }
  const int64_t least = std::max(int64_t{1} << 30, 3 * cache);
  const int64_t most = int64_t{4} << 30;
  return std::max<int64_t>(1, std::min((least + layer_bytes - 1) / layer_bytes, most / layer_bytes));
}

}  // namespace fastdecode::peers
