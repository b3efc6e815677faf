// The programs that the replay records: durability_scenarios NAME ROOT. They call Mark as soon as a
// promise holds.

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>

#include "config/embedded_models.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "server/files/file_store.h"
#include "server/jobs/job_files.h"
#include "server/jobs/job_supervisor.h"
#include "tests/support/checkpoint_contents.h"
#include "training/checkpoint/checkpoint_store.h"

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;
using server::Job;
using server::JobStatus;
using server::JobSupervisor;
using server::JobType;

void Mark(const std::string& text) {
  static const auto mark =
      reinterpret_cast<void (*)(const char*)>(dlsym(RTLD_DEFAULT, "tandem_io_mark"));
  if (mark != nullptr) mark(text.c_str());
}

void SaveCheckpoints(const fs::path& root) {
  const SomeContents contents;
  training::CheckpointStore store(root / "run" / "checkpoints", 2);
  for (const int64_t step : {10, 20, 30, 30, 40}) {
    store.Save(contents.Of(step));
    Mark("saved " + std::to_string(step));
  }
}

// Makes one of two mistakes that the replay must find. It renames a directory before its contents
// are synced, or reports a rename as durable without a sync of the parent.
void PublishCarelessly(const fs::path& root, bool sync_contents) {
  const SomeContents contents;
  const fs::path dir = root / "checkpoints";
  fs::create_directory(dir);
  engine::SyncPath(root);
  training::CheckpointStore scratch(root / "scratch", 1);
  const fs::path made = scratch.Save(contents.Of(10));
  const fs::path temporary = dir / "making";
  fs::create_directory(temporary);
  for (const auto& entry : fs::directory_iterator(made)) {
    fs::copy_file(entry.path(), temporary / entry.path().filename());
    if (sync_contents) engine::SyncPath(temporary / entry.path().filename());
  }
  if (sync_contents) engine::SyncPath(temporary);
  fs::rename(temporary, dir / "000000000010");
  if (!sync_contents) engine::SyncPath(dir);
  Mark("saved 10");
}

void WriteEmbedded(const fs::path& root) {
  const fs::path models = root / "data" / "models";
  config::WriteEmbeddedModel("tandem-stories", models / "stories");
  Mark("written");
}

// The process of a job: follows its spec.
int RunJob(const fs::path& dir) {
  const auto spec = nlohmann::json::parse(engine::ReadWholeFile(dir / "spec.json", 1 << 20));
  std::ofstream events(dir / "events.jsonl", std::ios::app);
  for (int step = 1; step <= 3; ++step) {
    events << R"({"kind":"step","step":)" << step << R"(,"total_steps":3,"value":1,"message":""})"
           << "\n"
           << std::flush;
  }
  const bool succeeds = spec.at("succeeds");
  engine::WriteFileAtomically(
      dir / "result.json",
      succeeds ? R"({"status":"succeeded","model_dir":"m"})"
               : R"({"status":"failed","error":{"message":"as asked","code":"bad_data"}})");
  return succeeds ? 0 : 65;
}

void WaitForEnd(JobSupervisor& jobs, const std::string& id) {
  for (;;) {
    const Job job = jobs.Find(id).value();
    if (IsFinished(job.status)) return Mark("ended " + id + " " + std::string(NameOf(job.status)));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void KeepJobs(const fs::path& root) {
  server::JobSupervisorOptions options;
  options.poll_interval = std::chrono::milliseconds(2);
  JobSupervisor jobs(server::JobStore::Open(root / "data"), options, [](const Job& job) {
    server::WriteJobFile(job.dir / "published.json", "{}");
  });
  server::FileStore files({.data_dir = root / "data"});
  server::TemporaryFile upload = files.BeginFile();
  upload.Write(std::string(5000, 'x'));
  const std::string file = files.Add(std::move(upload), {"rows.jsonl", "fine-tune", {}}).id;
  Mark("stored " + file);

  const auto submit = [&](const char* spec) {
    const std::string id = jobs.Submit(JobType::kTrain, spec).id;
    Mark("accepted " + id + " " + spec);
    return id;
  };
  const std::string good = submit(R"({"succeeds":true})");
  const std::string bad = submit(R"({"succeeds":false})");
  const std::string paused = submit(R"({"succeeds":true})");
  jobs.Pause(paused);
  Mark("paused " + paused);
  const std::string cancelled = submit(R"({"succeeds":true})");
  jobs.Cancel(cancelled);
  Mark("ended " + cancelled + " cancelled");
  WaitForEnd(jobs, good);
  WaitForEnd(jobs, bad);
  Mark("resuming " + paused);
  jobs.Resume(paused);
  Mark("resumed " + paused);
  WaitForEnd(jobs, paused);
  Mark("deleting " + file);
  files.Delete(file);
  Mark("deleted " + file);
}

int Main(int argc, char** argv) {
  const std::string_view name = argc > 2 ? argv[1] : "";
  const fs::path root = argc > 2 ? argv[2] : "";
  // The supervisor starts this program as a job: train --job DIR.
  if (name == "train") return RunJob(argv[3]);
  if (name == "checkpoints") return SaveCheckpoints(root), 0;
  if (name == "unsynced-contents") return PublishCarelessly(root, false), 0;
  if (name == "unsynced-name") return PublishCarelessly(root, true), 0;
  if (name == "embedded") return WriteEmbedded(root), 0;
  if (name == "jobs") return KeepJobs(root), 0;
  std::fprintf(stderr, "usage: durability_scenarios NAME ROOT\n");
  return 2;
}

}  // namespace
}  // namespace tandem::tests

int main(int argc, char** argv) { return tandem::tests::Main(argc, argv); }
