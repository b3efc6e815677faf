// Power losses at any moment: promised data exists, and existing data is whole. Records the
// changes of real programs and replays every prefix of them; disk_model.h lists the possible
// losses.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "server/files/file_store.h"
#include "server/jobs/job_files.h"
#include "server/jobs/job_supervisor.h"
#include "tests/durability/file_text.h"
#include "tests/durability/replay.h"
#include "tests/support/temporary_dir.h"
#include "training/checkpoint/checkpoint_store.h"

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// The faults of a directory of checkpoints. The checkpoint `promised`, or a later one, must be
// usable.
std::string FaultOfCheckpoints(const fs::path& dir, int64_t promised) {
  int64_t newest = -1;
  if (fs::exists(dir)) {
    std::string warnings;
    const training::CheckpointStore store(dir, 2);
    const auto found = store.FindNewest([&](const std::string& what) { warnings += what; });
    if (!warnings.empty()) return warnings;
    if (found) newest = found->step;
  }
  if (newest < promised) {
    return "step " + std::to_string(promised) + " was saved, the newest is " +
           std::to_string(newest);
  }
  if (!fs::exists(dir / "LATEST")) return "";
  const std::string latest = Text(dir / "LATEST");
  try {
    training::VerifyCheckpoint(dir / latest.substr(0, 12));
  } catch (const Error& error) {
    return "LATEST says '" + latest + "': " + error.what();
  }
  return "";
}

int64_t LastSaved(const std::vector<std::string>& marks) {
  int64_t step = -1;
  for (const std::string& mark : marks) {
    if (mark.starts_with("saved ")) step = std::stoll(mark.substr(6));
  }
  return step;
}

class PowerLoss : public testing::Test {
 protected:
  PowerLoss() { fs::create_directory(root()); }

  fs::path root() const { return dir_.path() / "root"; }

  std::vector<IoRecord> Scenario(const std::string& name) {
    return RecordProgram({TANDEM_SCENARIOS, name, root()}, root(), dir_.path() / "log");
  }

  void ExpectNoFaults(const std::vector<std::string>& faults) {
    for (const std::string& fault : faults) ADD_FAILURE() << fault;
  }

  TemporaryDir dir_;
};

TEST_F(PowerLoss, LeavesCheckpointsWholeOrAbsent) {
  const auto records = Scenario("checkpoints");
  ExpectNoFaults(FaultsOfReplay(records, root(), NumberOfStates(300), [](const LostPower& lost) {
    return FaultOfCheckpoints(lost.disk / "run" / "checkpoints", LastSaved(lost.marks));
  }));
}

// Checks the replay itself: it must find unsynced contents.
TEST_F(PowerLoss, IsSeenWhereContentsAreNotSynced) {
  const auto records = Scenario("unsynced-contents");
  const auto faults = FaultsOfReplay(
      records, root(), NumberOfStates(300),
      [](const LostPower& lost) { return FaultOfCheckpoints(lost.disk / "checkpoints", -1); });
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults[0].find("not usable"), std::string::npos) << faults[0];
}

TEST_F(PowerLoss, IsSeenWhereANameIsNotSynced) {
  const auto records = Scenario("unsynced-name");
  const auto faults =
      FaultsOfReplay(records, root(), NumberOfStates(300), [](const LostPower& lost) {
        return FaultOfCheckpoints(lost.disk / "checkpoints", LastSaved(lost.marks));
      });
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults[0].find("the newest is -1"), std::string::npos) << faults[0];
}

TEST_F(PowerLoss, LeavesTheEmbeddedModelWholeOrAbsent) {
  const auto records = Scenario("embedded");
  const fs::path made = root() / "data" / "models" / "stories";
  ExpectNoFaults(FaultsOfReplay(records, root(), NumberOfStates(100), [&](const LostPower& lost) {
    const fs::path dir = lost.disk / "data" / "models" / "stories";
    if (!fs::exists(dir)) return std::string(lost.marks.empty() ? "" : "the model is absent");
    for (const auto& entry : fs::directory_iterator(made)) {
      const fs::path name = entry.path().filename();
      if (!fs::exists(dir / name) || Text(dir / name) != Text(entry.path())) {
        return name.string() + " is not whole";
      }
    }
    return std::string();
  }));
}

// The scenario's promises about jobs and files.
struct Promises {
  std::map<std::string, std::string> accepted;  // id -> spec
  std::map<std::string, std::string> status;    // id -> the status it must have
  std::set<std::string> stored;
  std::set<std::string> deleted;

  explicit Promises(const std::vector<std::string>& marks) {
    for (const std::string& mark : marks) {
      const std::vector<std::string> words = Words(mark);
      if (words[0] == "accepted") accepted[words[1]] = words[2];
      if (words[0] == "paused") status[words[1]] = "paused";
      if (words[0] == "resuming") status.erase(words[1]);
      if (words[0] == "ended") status[words[1]] = words[2];
      if (words[0] == "stored") stored.insert(words[1]);
      if (words[0] == "deleting") stored.erase(words[1]);
      if (words[0] == "deleted") deleted.insert(words[1]);
    }
  }
};

std::string FaultOfFiles(const fs::path& data, const Promises& promises) {
  server::FileStore files({.data_dir = data});
  for (const std::string& id : promises.stored) {
    if (!files.Find(id)) return "file " + id + " is forgotten";
    const fs::path path = files.PathOf(id);
    if (!fs::exists(path) || Text(path) != std::string(5000, 'x')) return "file " + id + " is lost";
  }
  for (const std::string& id : promises.deleted) {
    if (files.Find(id)) return "file " + id + " is back";
  }
  // Every row of the table has its file.
  for (const server::StoredFile& file : files.List({}).files) {
    std::error_code failed;
    if (fs::file_size(files.PathOf(file.id), failed) != static_cast<uintmax_t>(file.bytes)) {
      return "file " + file.id + " is listed without its bytes";
    }
  }
  return "";
}

// Checks the store before any server resumes jobs.
std::string FaultOfRecords(server::JobStore& store, const Promises& promises) {
  for (const auto& [id, spec] : promises.accepted) {
    const auto record = store.Find(id);
    if (!record) return "job " + id + " is forgotten";
    const fs::path file = record->job.dir / "spec.json";
    if (!fs::exists(file) || Text(file) != spec) return "job " + id + " has lost its spec";
    const auto promised = promises.status.find(id);
    const std::string status(NameOf(record->job.status));
    if (promised != promises.status.end() && promised->second != status) {
      return "job " + id + " was " + promised->second + " and is " + status;
    }
  }
  for (const server::Job& job : store.List(server::JobFilter()).jobs) {
    if (!fs::exists(job.dir / "spec.json")) return "job " + job.id + " has no spec";
    if (job.status == server::JobStatus::kSucceeded && !fs::exists(job.dir / "published.json")) {
      return "job " + job.id + " succeeded, but is not published";
    }
  }
  return "";
}

// Starts the next server on the store. Every job must reach the end that its spec asks for.
std::string FaultOfGoingOn(server::JobStore store) {
  server::JobSupervisorOptions options;
  options.program = TANDEM_SCENARIOS;
  options.poll_interval = std::chrono::milliseconds(2);
  options.restart_delay = std::chrono::milliseconds(0);
  server::JobSupervisor jobs(std::move(store), options, [](const server::Job& job) {
    server::WriteJobFile(job.dir / "published.json", "{}");
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const server::Job& found : jobs.List(server::JobFilter()).jobs) {
    server::Job job = found;
    if (job.status == server::JobStatus::kPaused) job = jobs.Resume(job.id);
    while (!IsFinished(job.status)) {
      if (std::chrono::steady_clock::now() > deadline) {
        return "job " + job.id + " stays " + std::string(NameOf(job.status));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      job = jobs.Find(job.id).value();
    }
    if (job.status == server::JobStatus::kCancelled) continue;
    const bool succeeds = nlohmann::json::parse(Text(job.dir / "spec.json")).at("succeeds");
    if (succeeds != (job.status == server::JobStatus::kSucceeded)) {
      return "job " + job.id + " ended as " + std::string(NameOf(job.status)) + ": " +
             (job.error ? job.error->message : "");
    }
  }
  return "";
}

std::string FaultOfJobs(const LostPower& lost, bool goes_on) {
  const Promises promises(lost.marks);
  const fs::path data = lost.disk / "data";
  try {
    server::JobStore store = server::JobStore::Open(data);
    std::string fault = FaultOfRecords(store, promises);
    if (fault.empty()) fault = FaultOfFiles(data, promises);
    return fault.empty() && goes_on ? FaultOfGoingOn(std::move(store)) : fault;
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_F(PowerLoss, LosesNoJobAndNoFile) {
  const auto records = Scenario("jobs");
  // The recorder sees no stores through mappings, so only SQLite's -shm may be mapped.
  for (const IoRecord& record : records) {
    if (record.kind != IoKind::kMap) continue;
    EXPECT_TRUE(record.path.ends_with("-shm")) << record.path;
  }
  ExpectNoFaults(FaultsOfReplay(records, root(), NumberOfStates(160),
                                [](const LostPower& lost) { return FaultOfJobs(lost, true); }));
}

// Removes the syncs of one path from a recording; the replay must find a fault.
TEST_F(PowerLoss, IsSeenWhereverASyncIsLeftOut) {
  const auto records = Scenario("jobs");
  for (const char* path : {"", "data", "data/jobs", "data/files", "data/tandem.db-wal"}) {
    const fs::path left_out = *path == '\0' ? root() : root() / path;
    std::vector<IoRecord> careless = records;
    std::erase_if(careless, [&](const IoRecord& record) {
      return record.kind == IoKind::kSync && record.path == left_out;
    });
    ASSERT_LT(careless.size(), records.size()) << path << " is never synced";
    const auto faults = FaultsOfReplay(careless, root(), NumberOfStates(300),
                                       [](const auto& lost) { return FaultOfJobs(lost, false); });
    EXPECT_FALSE(faults.empty()) << path;
  }
}

}  // namespace
}  // namespace tandem::tests
