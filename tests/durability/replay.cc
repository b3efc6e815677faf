#include "tests/durability/replay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>

extern char** environ;

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

constexpr std::array kLosses = {Loss::kNothing, Loss::kUnsynced, Loss::kContents, Loss::kNames,
                                Loss::kSome};
constexpr std::array kLossNames = {"everything reached the disk", "what was not synced is lost",
                                   "contents that were not synced are lost",
                                   "names that were not synced are lost",
                                   "some of what was not synced is lost"};

// The replay stops after this many faults.
constexpr size_t kEnoughFaults = 5;

struct Moment {
  size_t n_applied = 0;
  size_t loss = 0;
};

DiskState StateAt(const DiskModel& model, const Moment& moment) {
  std::mt19937 random(static_cast<uint32_t>(moment.n_applied));
  return model.After(kLosses[moment.loss], random);
}

// The moments at which the state changes, in order.
std::vector<Moment> DifferentMoments(const std::vector<IoRecord>& records, const fs::path& root) {
  DiskModel model(root);
  std::vector<Moment> moments;
  std::set<std::array<size_t, 3>> seen;  // loss, state, promises
  size_t n_marks = 0;
  for (size_t n = 0; n <= records.size(); ++n) {
    for (size_t loss = 0; loss < kLosses.size(); ++loss) {
      if (seen.insert({loss, model.Digest(kLosses[loss]), n_marks}).second) {
        moments.push_back({n, loss});
      }
    }
    if (n == records.size()) break;
    model.Apply(records[n]);
    n_marks += records[n].kind == IoKind::kMark ? 1 : 0;
  }
  return moments;
}

std::vector<Moment> Spread(const std::vector<Moment>& all, size_t limit) {
  if (all.size() <= limit) return all;
  std::vector<Moment> chosen;
  for (size_t i = 0; i < limit; ++i) chosen.push_back(all[i * (all.size() - 1) / (limit - 1)]);
  return chosen;
}

std::string Describe(const std::vector<IoRecord>& records, const Moment& moment) {
  constexpr std::array kKinds = {"open",  "write", "truncate", "sync",    "rename", "remove",
                                 "mkdir", "link",  "symlink",  "mapping", "mark"};
  std::string text = "power lost after " + std::to_string(moment.n_applied) + " of " +
                     std::to_string(records.size()) + " changes, " + kLossNames[moment.loss];
  if (moment.n_applied > 0) {
    const IoRecord& last = records[moment.n_applied - 1];
    text += std::string("; the last was ") + kKinds[static_cast<size_t>(last.kind)] + " " +
            last.path + " " + last.second;
  }
  return text;
}

// Memory if possible: a replayed state need not be durable.
fs::path ScratchDir() {
  const fs::path shared = "/dev/shm";
  std::string name =
      ((fs::exists(shared) ? shared : fs::temp_directory_path()) / "tandem-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return name;
}

}  // namespace

size_t NumberOfStates(size_t usually) {
  const char* slow = std::getenv("TANDEM_SLOW_TESTS");
  return slow != nullptr && std::string(slow) == "1" ? std::numeric_limits<size_t>::max() : usually;
}

int RunProgram(const std::vector<std::string>& words, const std::vector<std::string>& more,
               const fs::path& output) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> environment;
  for (const std::string& entry : more) environment.push_back(const_cast<char*>(entry.c_str()));
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int failed =
      posix_spawn(&pid, words[0].c_str(), &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return -1;
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<IoRecord> RecordProgram(const std::vector<std::string>& words, const fs::path& root,
                                    const fs::path& log) {
  const fs::path output = log.string() + ".out";
  const int code =
      RunProgram(words,
                 {"LD_PRELOAD=" TANDEM_IO_RECORDER, std::string(kLogVariable) + "=" + log.string(),
                  std::string(kRootVariable) + "=" + root.string()},
                 output);
  if (code != 0) {
    std::ifstream in(output);
    ADD_FAILURE() << words[0] << " ended with " << code << ":\n"
                  << std::string{std::istreambuf_iterator<char>(in),
                                 std::istreambuf_iterator<char>()};
  }
  return ReadIoLog(log);
}

std::vector<std::string> FaultsOfReplay(const std::vector<IoRecord>& records, const fs::path& root,
                                        size_t limit,
                                        const std::function<std::string(const LostPower&)>& check) {
  const std::vector<Moment> all = DifferentMoments(records, root);
  const std::vector<Moment> moments = Spread(all, limit);
  const fs::path scratch = ScratchDir();
  std::vector<std::string> faults;
  DiskModel model(root);
  LostPower lost{scratch / "disk", {}, records, 0};
  for (const Moment& moment : moments) {
    for (; lost.n_applied < moment.n_applied; ++lost.n_applied) {
      const IoRecord& record = records[lost.n_applied];
      model.Apply(record);
      if (record.kind == IoKind::kMark) lost.marks.push_back(record.path);
    }
    PutOnDisk(StateAt(model, moment), lost.disk);
    if (std::string fault = check(lost); !fault.empty()) {
      faults.push_back(Describe(records, moment) + ": " + fault);
      if (faults.size() == kEnoughFaults) break;
    }
  }
  fs::remove_all(scratch);
  testing::Test::RecordProperty("states", static_cast<int>(moments.size()));
  std::printf("%zu changes, %zu different states, %zu looked at\n", records.size(), all.size(),
              moments.size());
  return faults;
}

}  // namespace tandem::tests
