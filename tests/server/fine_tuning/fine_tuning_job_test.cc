// The API's view of the files of a fine-tuning job: its object, events and checkpoints.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "server/fine_tuning/fine_tuning_checkpoints.h"
#include "server/fine_tuning/fine_tuning_events.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/jobs/job_files.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kName = "ft:base:local:tales:abcdef";

class FineTuningJobTest : public testing::Test {
 protected:
  FineTuningJobTest() {
    job_.id = "ftjob-0123456789abcdef";
    job_.type = JobType::kFineTune;
    job_.created_at = 1000;
    job_.dir = dir_.path() / "job";
    fs::create_directories(job_.dir);
    SetRequest(Json::object());
  }

  void SetRequest(const Json& more) {
    Json request = {{"model", "base"},
                    {"base", "base"},
                    {"training_file", "file-1"},
                    {"validation_file", nullptr},
                    {"method", "supervised"},
                    {"hyperparameters", {{"n_epochs", 3}}},
                    {"suffix", "tales"},
                    {"seed", 7},
                    {"steps", 9},
                    {"unchecked", false},
                    {"metadata", nullptr}};
    request.update(more);
    job_.request_json = request.dump();
  }
  void Finish(JobStatus status) {
    job_.status = status;
    job_.started_at = 1001;
    job_.finished_at = 9000;
  }
  void Append(const char* file, const Json& line) {
    std::ofstream(job_.dir / file, std::ios::app) << line.dump() << "\n";
  }
  // `step` counts from 1, as in the API.
  void Step(int64_t step, double loss = 0.5) {
    Append("metrics.jsonl", {{"step", step - 1},
                             {"unix_seconds", 1000.5 + static_cast<double>(step)},
                             {"learning/loss", loss},
                             {"learning/accuracy", 0.25},
                             {"learning/total_weights", 10},
                             {"learning/current_learning_rate", 1e-4},
                             {"perf/real_tokens_per_sec", 99.0}});
  }
  void Evaluate(int64_t step, double loss = 0.75) {
    Append("metrics.jsonl", {{"step", step},
                             {"unix_seconds", 1000.5 + static_cast<double>(step)},
                             {"eval/avg_loss", loss},
                             {"eval/accuracy", 0.125}});
  }
  void Message(const char* kind, int64_t step, const std::string& text) {
    Append("events.jsonl",
           {{"unix_ms", (1000 + step) * 1000}, {"kind", kind}, {"step", step}, {"message", text}});
  }
  void Export(int64_t step, bool is_adapter = true) {
    const fs::path dir = job_.dir / "exports" / ("step-" + std::to_string(step));
    fs::create_directories(dir);
    std::ofstream(dir / (is_adapter ? "adapter_config.json" : "config.json")) << "{}";
  }

  std::vector<Json> Events(int64_t steps) const {
    FineTuningEvents reader(job_, steps);
    std::vector<Json> events;
    while (reader.ReadMore(IsFinished(job_.status), &events)) {
    }
    for (Json& event : reader.End(job_)) events.push_back(std::move(event));
    return events;
  }
  static std::vector<int64_t> Steps(const std::vector<Json>& events, const char* with) {
    std::vector<int64_t> steps;
    for (const Json& event : events) {
      if (event["type"] == "metrics" && event["data"].contains(with)) {
        steps.push_back(event["data"]["step"]);
      }
    }
    return steps;
  }

  tests::TemporaryDir dir_;
  Job job_;
};

// The official reference: https://platform.openai.com/docs/api-reference/fine-tuning/object
TEST_F(FineTuningJobTest, TheObjectHasEveryRequiredKeyOfItsType) {
  for (const JobStatus status :
       {JobStatus::kQueued, JobStatus::kRunning, JobStatus::kPaused, JobStatus::kSucceeded,
        JobStatus::kFailed, JobStatus::kCancelled}) {
    job_.error.reset();
    job_.status = status;
    if (IsFinished(status)) Finish(status);
    if (status == JobStatus::kFailed) job_.error = JobError{"it broke", "failed"};
    if (status == JobStatus::kSucceeded) WriteFineTuningResult(job_, {{"file-9"}, 90, 9});
    const Json object = FineTuningJobJson(job_, 2000);
    SCOPED_TRACE(object.dump());
    EXPECT_EQ(object["object"], "fine_tuning.job");
    for (const char* name : {"id", "model", "organization_id", "status", "training_file"}) {
      EXPECT_TRUE(object.at(name).is_string()) << name;
    }
    for (const char* name : {"created_at", "seed"}) {
      EXPECT_TRUE(object.at(name).is_number_integer()) << name;
    }
    EXPECT_TRUE(object.at("result_files").is_array());
    EXPECT_TRUE(object.at("integrations").is_array());
    EXPECT_TRUE(object.at("hyperparameters").is_object());
    EXPECT_EQ(object.at("method").at("type"), "supervised");
    EXPECT_TRUE(object.at("method").at("supervised").at("hyperparameters").is_object());
    const bool has_succeeded = status == JobStatus::kSucceeded;
    EXPECT_EQ(object.at("finished_at").is_number_integer(), IsFinished(status));
    EXPECT_EQ(object.at("fine_tuned_model").is_string(), has_succeeded);
    EXPECT_EQ(object.at("trained_tokens").is_number_integer(), has_succeeded);
    EXPECT_EQ(object.at("error").is_object(), status == JobStatus::kFailed);
    EXPECT_TRUE(object.at("validation_file").is_null());
    EXPECT_TRUE(object.contains("estimated_finish"));
    EXPECT_TRUE(object.contains("metadata"));
  }
  EXPECT_EQ(FineTunedNameOf(job_), kName);
}

TEST_F(FineTuningJobTest, ALargeFileIsBeingValidatedUntilTheRunHasSomethingToSay) {
  const auto status = [&] { return FineTuningJobJson(job_, 2000)["status"]; };
  EXPECT_EQ(status(), "queued");
  SetRequest({{"unchecked", true}});
  EXPECT_EQ(status(), "validating_files");
  job_.status = JobStatus::kRunning;
  EXPECT_EQ(status(), "validating_files");
  job_.status = JobStatus::kPaused;
  EXPECT_EQ(status(), "paused");
  job_.status = JobStatus::kRunning;
  Message("message", 0, "12 samples");
  EXPECT_EQ(status(), "running");
  job_.status = JobStatus::kQueued;
  EXPECT_EQ(status(), "queued");
  Finish(JobStatus::kCancelled);
  EXPECT_EQ(status(), "cancelled");
}

TEST_F(FineTuningJobTest, BadLinesAreNamedAndAtMostTenOfThem) {
  const std::string train = (dir_.path() / "file-1").string();
  const std::string eval = (dir_.path() / "file-2").string();
  Append("spec.json", {{"data", {{"train", train}, {"eval", eval}}}});
  Finish(JobStatus::kFailed);
  const auto error = [&](const std::string& message) {
    job_.error = JobError{message, "bad_data"};
    return FineTuningJobJson(job_, 2000)["error"];
  };

  Json shown = error(train + ": 2 of 40 rows are bad\n  line 7: no messages\n  line 9: no JSON\n" +
                     "fix them, or skip them with data.on_bad_row=skip");
  EXPECT_EQ(shown["code"], "invalid_training_file");
  EXPECT_EQ(shown["message"], "line 7: no messages; line 9: no JSON");
  EXPECT_EQ(shown["param"], "training_file");

  std::string many = eval + ": 70 of 80 rows are bad";
  for (int i = 1; i <= 50; ++i) many += "\n  line " + std::to_string(i) + ": bad";
  shown = error(many + "\n  and 20 more\nfix them");
  EXPECT_EQ(shown["param"], "validation_file");
  EXPECT_EQ(shown["message"],
            "line 1: bad; line 2: bad; line 3: bad; line 4: bad; line 5: bad; line 6: bad; "
            "line 7: bad; line 8: bad; line 9: bad; line 10: bad; and 60 more");

  shown = error(train + ": none of 12 rows gives a sample to train on");
  EXPECT_EQ(shown["message"], "the file: none of 12 rows gives a sample to train on");
  EXPECT_EQ(shown["param"], "training_file");
  EXPECT_EQ(Events(9).back()["message"], shown["message"]);
  EXPECT_EQ(Events(9).back()["level"], "error");

  job_.error = JobError{"the job's process was ended by signal 11", "crashed"};
  shown = FineTuningJobJson(job_, 2000)["error"];
  EXPECT_EQ(shown["code"], "crashed");
  EXPECT_TRUE(shown["param"].is_null());
}

TEST_F(FineTuningJobTest, EventsHaveEveryRequiredKeyOfItsType) {
  Message("message", 0, "12 samples");
  Message("warning", 0, "3 of 12 rows longer than 16 tokens");
  Message("checkpoint", 1, "/data/jobs/checkpoints/1");
  Message("export", 1, "/data/jobs/exports/step-1");
  Step(1);
  Evaluate(1);
  Finish(JobStatus::kSucceeded);

  const std::vector<Json> events = Events(1);

  std::set<std::string> ids;
  for (const Json& event : events) {
    SCOPED_TRACE(event.dump());
    EXPECT_EQ(event.at("object"), "fine_tuning.job.event");
    EXPECT_TRUE(event.at("created_at").is_number_integer());
    EXPECT_TRUE(event.at("message").is_string());
    const std::string level = event.at("level");
    EXPECT_TRUE(level == "info" || level == "warn" || level == "error");
    const std::string type = event.at("type");
    // OpenAI's specification requires an object here, not null.
    ASSERT_TRUE(event.at("data").is_object());
    EXPECT_EQ(event.at("data").empty(), type == "message");
    EXPECT_EQ(event.at("message").get<std::string>().find("/data"), std::string::npos);
    ids.insert(event.at("id"));
  }
  EXPECT_EQ(ids.size(), events.size());
  const auto step = std::find_if(events.begin(), events.end(), [](const Json& event) {
    return event["type"] == "metrics" && event["data"].contains("train_loss");
  });
  ASSERT_NE(step, events.end());
  EXPECT_EQ((*step)["data"].dump(),
            R"({"step":1,"total_steps":1,"train_loss":0.5,"train_mean_token_accuracy":0.25,)"
            R"("learning_rate":0.0001,"tokens_per_second":99.0})");
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Json& event) { return event["level"] == "warn"; }),
            1);
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Json& event) {
                            return event["message"] == "Checkpoint created at step 1: " +
                                                           std::string(kName) + ":ckpt-step-1";
                          }),
            1);
  EXPECT_EQ(events.back()["message"], "The job has successfully completed");
}

TEST_F(FineTuningJobTest, MessagesNameFilesOfTheJobWithoutItsDirectory) {
  Message("message", 3, "adapter exported to " + (job_.dir / "adapter").string());

  EXPECT_EQ(Events(9)[1]["message"], "adapter exported to adapter");
}

TEST_F(FineTuningJobTest, ASampleIsAMessageWithItsText) {
  Message("sample", 3, "Tell me a story. Once there was a <b>ship</b>.");

  const std::vector<Json> events = Events(9);

  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1]["type"], "message");
  EXPECT_EQ(events[1]["message"], "Sample after step 3");
  EXPECT_EQ(events[1]["data"]["step"], 3);
  EXPECT_EQ(events[1]["data"]["sample"], "Tell me a story. Once there was a <b>ship</b>.");
}

TEST_F(FineTuningJobTest, AFollowerReadsTheLastLineOfAnEndedJobWithoutItsNewline) {
  job_.status = JobStatus::kRunning;
  FineTuningEvents follower(job_, 9);
  std::ofstream(job_.dir / "events.jsonl")
      << R"({"unix_ms":1001000,"kind":"message","step":1,"message":"the last words"})";
  std::vector<Json> events;
  while (follower.ReadMore(false, &events)) {
  }
  const size_t n_before = events.size();  // the process may still write the rest of the line

  while (follower.ReadMore(true, &events)) {
  }

  ASSERT_EQ(events.size(), n_before + 1);
  EXPECT_EQ(events.back()["message"], "the last words");
}

TEST_F(FineTuningJobTest, UpToAThousandStepsAreAllTold) {
  for (int64_t step = 1; step <= 1000; ++step) Step(step);
  EXPECT_EQ(Steps(Events(1000), "train_loss").size(), 1000u);
}

TEST_F(FineTuningJobTest, OfMoreStepsSomeAreToldAndNothingElseIsLost) {
  constexpr int64_t kSteps = 2501;
  for (int64_t step = 1; step <= kSteps; ++step) {
    Step(step);
    if (step % 100 == 1) Message("warning", step, "warning " + std::to_string(step));
    if (step % 250 == 0) Evaluate(step);
  }
  Finish(JobStatus::kSucceeded);

  const std::vector<Json> events = Events(kSteps);

  const std::vector<int64_t> steps = Steps(events, "train_loss");
  EXPECT_LE(steps.size(), 1000u);
  EXPECT_GE(steps.size(), 800u);
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), kSteps);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(Steps(events, "valid_loss").size(), 10u);
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Json& event) { return event["level"] == "warn"; }),
            26);
}

// A run may end before its planned number of steps.
TEST_F(FineTuningJobTest, TheLastStepDoneIsToldWhicheverItIs) {
  for (int64_t step = 1; step <= 1234; ++step) Step(step);
  EXPECT_EQ(Steps(Events(5000), "train_loss").back(), 1230) << "while it runs";

  Finish(JobStatus::kCancelled);

  const std::vector<Json> events = Events(5000);
  EXPECT_EQ(Steps(events, "train_loss").back(), 1234);
  EXPECT_EQ(events.back()["message"], "The job was cancelled");
}

TEST_F(FineTuningJobTest, AStepThatWasDoneTwiceIsOneEvent) {
  for (int64_t step = 1; step <= 6; ++step) Step(step);
  Evaluate(4);
  for (int64_t step = 3; step <= 9; ++step) Step(step);
  Evaluate(4);
  Evaluate(8);
  Finish(JobStatus::kSucceeded);

  const std::vector<Json> events = Events(9);

  EXPECT_EQ(Steps(events, "train_loss"), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(Steps(events, "valid_loss"), (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(ReadFineTuningFigures(job_, 9).trained_tokens, 90);
}

TEST_F(FineTuningJobTest, CheckpointsAreTheExportsAndTheResult) {
  for (int64_t step = 1; step <= 9; ++step) Step(step, 1.0 / static_cast<double>(step));
  Evaluate(4);
  Export(4);
  Export(8, false);
  for (const char* other : {".tmp-step-5", "step-", "step-07", "step-7b", "step-0", "steps-7"}) {
    fs::create_directories(job_.dir / "exports" / other);
  }
  fs::create_directory_symlink(job_.dir / "exports" / "step-4", job_.dir / "exports" / "step-5");
  job_.status = JobStatus::kRunning;

  std::vector<FineTuningCheckpoint> found = FineTuningCheckpointsOf(job_);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].model, std::string(kName) + ":ckpt-step-4");
  EXPECT_TRUE(found[0].is_adapter);
  EXPECT_FALSE(found[1].is_adapter);

  Finish(JobStatus::kSucceeded);
  WriteFineTuningResult(job_, {{}, 90, 9});
  found = FineTuningCheckpointsOf(job_);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[2].step, 9);
  EXPECT_EQ(found[2].model, kName);

  const FineTuningFigures figures = ReadFineTuningFigures(job_, 9);
  const Json object = FineTuningCheckpointJson(job_, found[0], figures);
  SCOPED_TRACE(object.dump());
  EXPECT_EQ(object.at("object"), "fine_tuning.job.checkpoint");
  EXPECT_EQ(object.at("id"), "ftckpt-0123456789abcdef-4");
  EXPECT_TRUE(object.at("created_at").is_number_integer());
  EXPECT_EQ(object.at("fine_tuned_model_checkpoint"), found[0].model);
  EXPECT_EQ(object.at("step_number"), 4);
  EXPECT_EQ(object.at("fine_tuning_job_id"), job_.id);
  EXPECT_EQ(object.at("metrics").dump(),
            R"({"step":4,"train_loss":0.25,"train_mean_token_accuracy":0.25,"valid_loss":0.75,)"
            R"("valid_mean_token_accuracy":0.125,"full_valid_loss":0.75,)"
            R"("full_valid_mean_token_accuracy":0.125})");
  const Json last = FineTuningCheckpointJson(job_, found[2], figures);
  EXPECT_FALSE(last["metrics"].contains("valid_loss")) << last;

  // A deleted job lists no checkpoints, even if their files remain.
  WriteJobFile(job_.dir / kModelDeletedFile, "");
  EXPECT_TRUE(FineTuningCheckpointsOf(job_).empty());
}

TEST_F(FineTuningJobTest, TheResultStandsForAnExportOfItsStep) {
  Export(4);
  Finish(JobStatus::kSucceeded);
  WriteFineTuningResult(job_, {{}, 40, 4});

  const std::vector<FineTuningCheckpoint> found = FineTuningCheckpointsOf(job_);

  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].is_result);
}

TEST(FineTuningCheckpoints, TheirNamesAreTold) {
  EXPECT_TRUE(IsCheckpointName("ft:base:local::abcdef:ckpt-step-12"));
  for (const char* name : {"", "base", "ft:base:local::abcdef", "x:ckpt-step-", "x:ckpt-step-0",
                           "x:ckpt-step-01", "x:ckpt-step-1a", "x:ckpt-step--1",
                           "x:ckpt-step-99999999999999999999", "x:ckpt-step-1:y"}) {
    EXPECT_FALSE(IsCheckpointName(name)) << name;
  }
}

}  // namespace
}  // namespace tandem::server
