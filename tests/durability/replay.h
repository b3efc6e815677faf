#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/durability/disk_model.h"

namespace tandem::tests {

// Runs a program with the recorder and gives what it, and what it started, changed below `root`.
// Fails the test when the program does not end with 0.
std::vector<IoRecord> RecordProgram(const std::vector<std::string>& words,
                                    const std::filesystem::path& root,
                                    const std::filesystem::path& log);

// One moment of a recording, and what the disk would hold had the power gone then.
struct LostPower {
  std::filesystem::path disk;
  std::vector<std::string> marks;    // what the program had promised
  std::vector<IoRecord> const& all;  // the records, of which the first n_applied were made
  size_t n_applied = 0;
};

// Looks at every state that a power loss may leave at any moment, at most `limit` of them, evenly
// spread. `check` gives what is wrong, or nothing. Returns the faults with where they are.
std::vector<std::string> FaultsOfReplay(const std::vector<IoRecord>& records,
                                        const std::filesystem::path& root, size_t limit,
                                        const std::function<std::string(const LostPower&)>& check);

// `usually`, or with TANDEM_SLOW_TESTS=1 all.
size_t NumberOfStates(size_t usually);

// Runs a program to its end; its exit code, or -1 after a signal.
int RunProgram(const std::vector<std::string>& words,
               const std::vector<std::string>& more_environment,
               const std::filesystem::path& output);

}  // namespace tandem::tests
