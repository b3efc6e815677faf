#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/durability/disk_model.h"

namespace tandem::tests {

// Runs a program with the recorder; returns the changes that it and its children made below `root`.
// Fails the test unless the program exits with 0.
std::vector<IoRecord> RecordProgram(const std::vector<std::string>& words,
                                    const std::filesystem::path& root,
                                    const std::filesystem::path& log);

// One moment of a recording, and one possible state of the disk if the power is lost then.
struct LostPower {
  std::filesystem::path disk;
  std::vector<std::string> marks;    // promises made so far
  std::vector<IoRecord> const& all;  // the first n_applied of them were made
  size_t n_applied = 0;
};

// Checks the states that a power loss may leave at any moment: at most `limit`, evenly spread.
// `check` returns a fault or an empty string. Returns the faults with their positions.
std::vector<std::string> FaultsOfReplay(const std::vector<IoRecord>& records,
                                        const std::filesystem::path& root, size_t limit,
                                        const std::function<std::string(const LostPower&)>& check);

// Returns `usually`, or no limit with TANDEM_SLOW_TESTS=1.
size_t NumberOfStates(size_t usually);

// Runs a program to its end. Returns its exit code, or -1 after a signal.
int RunProgram(const std::vector<std::string>& words,
               const std::vector<std::string>& more_environment,
               const std::filesystem::path& output);

}  // namespace tandem::tests
