// Recipe and Account: what a fault recipe has done, and the lines that a recipe program prints.
//
// Above it: torture_lab.h, disturbed_transfers.h, the tests of the update log. Below it: nothing.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace hps {

// What a recipe has done. Its premise is that the fault struck, so `runs` counts those alone.
struct Recipe {
  int64_t runs = 0;
  int64_t violations = 0;
  std::string first;  // violation

  // `wrong` is empty, or says what a run has found.
  void Note(const std::string& wrong, int64_t seed, int64_t call) {
    if (wrong.empty()) return;
    if (violations++ == 0) {
      first = "seed " + std::to_string(seed) + ", call " + std::to_string(call) + ": " + wrong;
    }
  }
};

// The recipes of a test program, with one line for each on standard output, which
// tests/torture/run.py reads: "recipe <id> <runs> <violations> <what was done>".
class Account {
 public:
  void Add(const char* id, const Recipe& recipe, int64_t least, const std::string& what) {
    std::printf("recipe %s %lld %lld %s\n", id, static_cast<long long>(recipe.runs),
                static_cast<long long>(recipe.violations), what.c_str());
    if (recipe.violations > 0) std::printf("violation of %s: %s\n", id, recipe.first.c_str());
    if (recipe.runs < least) {
      std::printf("%s: %lld runs are the least\n", id, static_cast<long long>(least));
    }
    is_good_ = is_good_ && recipe.violations == 0 && recipe.runs >= least;
  }
  // The same recipe with a bug planted, which it must find.
  void AddPlanted(const char* id, const Recipe& recipe, const std::string& bug) {
    const bool is_found = recipe.violations > 0;
    std::printf("planted %s %s %s: %s\n", id, is_found ? "found" : "MISSED", bug.c_str(),
                is_found ? recipe.first.c_str() : "");
    is_good_ = is_good_ && is_found;
  }
  int ExitCode() const { return is_good_ ? 0 : 1; }

 private:
  bool is_good_ = true;
};

// What a recipe program begins with: whether it is asked for its full counts. Lines go out at once.
inline bool IsFull(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return argc > 1 && std::strcmp(argv[1], "full") == 0;
}

}  // namespace hps
