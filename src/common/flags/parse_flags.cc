#include "common/flags/parse_flags.h"

#include <gflags/gflags.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace GFLAGS_NAMESPACE {
// Defined in gflags and exported, but in none of its headers.
extern void (*gflags_exitfunc)(int);
}  // namespace GFLAGS_NAMESPACE

namespace fastdecode {
namespace {

constexpr int kExitUsage = 2;

[[noreturn]] void ExitUsage(int) { std::exit(kExitUsage); }

// --max-batch=3 -> --max_batch=3, in place; stops at "--".
void DashesToUnderscores(int argc, char** argv) {
  for (int i = 1; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
    if (std::strncmp(argv[i], "--", 2) != 0) continue;
    for (char* c = argv[i] + 2; *c != '\0' && *c != '='; ++c) {
      if (*c == '-') *c = '_';
    }
  }
}

void PrintHelp(const ProgramText& text) {
  std::printf("%s: %s\n\nFlags:\n", text.name.c_str(), text.usage.c_str());
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  for (const gflags::CommandLineFlagInfo& flag : flags) {
    if (!flag.filename.ends_with("main.cc")) continue;
    std::printf("  --%s (%s, default %s)\n      %s\n", flag.name.c_str(), flag.type.c_str(),
                flag.default_value.empty() ? "none" : flag.default_value.c_str(), flag.description.c_str());
  }
  std::printf("  --help, --version\n");
}

bool Wanted(const char* flag) {
  std::string value;
  return gflags::GetCommandLineOption(flag, &value) && value == "true";
}

}  // namespace

std::optional<int> ParseFlags(const ProgramText& text, int* argc, char*** argv) {
  GFLAGS_NAMESPACE::gflags_exitfunc = &ExitUsage;
  gflags::SetUsageMessage(text.usage);
  gflags::SetVersionString(FASTDECODE_VERSION);
  DashesToUnderscores(*argc, *argv);
  gflags::ParseCommandLineNonHelpFlags(argc, argv, /*remove_flags=*/true);
  if (Wanted("help")) {
    PrintHelp(text);
    return 0;
  }
  if (Wanted("version")) {
    std::printf("%s %s\n", text.name.c_str(), FASTDECODE_VERSION);
    return 0;
  }
  if (*argc > 1) {
    std::fprintf(stderr, "%s: '%s' is not a flag; --help lists them\n", text.name.c_str(), (*argv)[1]);
    return kExitUsage;
  }
  return std::nullopt;
}

}  // namespace fastdecode
