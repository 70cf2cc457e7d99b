// Command lines, the same way in every program: gflags, with exit status 2 for a bad
// one (gflags' own is 1), --help that shows the program's own flags alone and ends
// with 0, and --names-with-dashes taken for names_with_underscores.
#pragma once

#include <optional>
#include <string>

namespace fastdecode {

struct ProgramText {
  std::string name;   // "fastdecode-sworker"
  std::string usage;  // what it is, how to call it, exit status
};

// Parses argv, leaving what is not a flag (argv[0] included). A value: exit with it now.
// The flags shown by --help are those that the program's main.cc defines.
std::optional<int> ParseFlags(const ProgramText& text, int* argc, char*** argv);

}  // namespace fastdecode
