// Power losses during real training: checkpoints, the exported model and the loss curves.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/durability/file_text.h"
#include "tests/durability/replay.h"
#include "tests/support/model_harness.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"
#include "training/checkpoint/checkpoint_store.h"

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 8;

// The last loss in the file for each step.
std::map<int64_t, double> Losses(const fs::path& run) {
  std::map<int64_t, double> losses;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("learning/loss")) continue;
    losses[json["step"]] = json["learning/loss"];
  }
  return losses;
}

class TrainingLoss : public testing::Test {
 protected:
  TrainingLoss() {
    fs::create_directory(root());
    bench::RandomModelSpec model;
    model.config = bench::TinyLlamaConfig();
    model.with_tokenizer = true;
    bench::WriteRandomModel(model, dir_.path() / "base");
    std::ofstream text(dir_.path() / "train.txt");
    for (int i = 0; i < 30; ++i) {
      text << "Story " << i << ": the " << (i % 3 != 0 ? "dog" : "cat")
           << " slept.\n<|endoftext|>\n";
    }
    std::ofstream spec(dir_.path() / "spec.yaml");
    spec << "run_name: run\nmodel: {load_parameters_path: " << (dir_.path() / "base").string()
         << "}\ndata: {train: " << (dir_.path() / "train.txt").string()
         << ", max_target_length: 32, eos_token: \"<|endoftext|>\"}\n"
         << "train: {steps: " << kSteps << ", per_device_batch_size: 2}\n"
         << "lora: {rank: 2, dropout: 0.1}\n"
         << "checkpoint: {period: 2, keep: 2}\nresources: {threads: 1}\n";
  }

  fs::path root() const { return dir_.path() / "root"; }

  std::vector<std::string> TrainWords(const fs::path& output) const {
    return {ProgramPath(), "train", dir_.path() / "spec.yaml",
            "base_output_directory=" + output.string()};
  }

  // Compares checkpoints, adapter and curve with the end of the recorded run.
  std::string FaultOf(const LostPower& lost) const {
    const fs::path run = lost.disk / "run";
    int64_t newest = -1;
    if (fs::exists(run / "checkpoints")) {
      std::string warnings;
      const training::CheckpointStore store(run / "checkpoints", 2);
      const auto found = store.FindNewest([&](const std::string& what) { warnings += what; });
      if (!warnings.empty()) return warnings;
      if (found) newest = found->step;
    }
    if (newest < PromisedStep(lost)) return "the newest checkpoint is " + std::to_string(newest);
    const std::map<int64_t, double> losses = Losses(run);
    for (int64_t step = 0; step < newest; ++step) {
      const auto loss = losses.find(step);
      if (loss == losses.end()) {
        return "checkpoint " + std::to_string(newest) + " without the loss of step " +
               std::to_string(step);
      }
      if (loss->second != undisturbed_.at(step)) return "another loss of " + std::to_string(step);
    }
    return FaultOfResult(run);
  }

  std::string FaultOfResult(const fs::path& run) const {
    const bool is_exported = fs::exists(run / "adapter");
    if (is_exported && !IsWhole(run / "adapter")) return "the adapter is not whole";
    if (!fs::exists(run / "result.json")) return "";
    const auto result = nlohmann::json::parse(Text(run / "result.json"), nullptr, false);
    if (!result.is_object() || result.value("status", "") != "succeeded")
      return "a bad result.json";
    return is_exported ? "" : "a result without its adapter";
  }

  bool IsWhole(const fs::path& adapter) const {
    for (const auto& entry : fs::directory_iterator(root() / "run" / "adapter")) {
      const fs::path file = adapter / entry.path().filename();
      if (!fs::exists(file) || Text(file) != Text(entry.path())) return false;
    }
    return true;
  }

  // The step of the last checkpoint that events.jsonl reports as written.
  static int64_t PromisedStep(const LostPower& lost) {
    int64_t step = -1;
    for (size_t i = 0; i < lost.n_applied; ++i) {
      const std::string& data = lost.all[i].data;
      if (data.find("\"kind\":\"checkpoint\"") == std::string::npos) continue;
      const auto event = nlohmann::json::parse(data, nullptr, false);
      if (!event.is_object()) continue;
      step = fs::path(event.value("message", "")).filename() == ""
                 ? step
                 : std::stoll(fs::path(event.value("message", "")).filename().string());
    }
    return step;
  }

  TemporaryDir dir_;
  std::map<int64_t, double> undisturbed_;
};

TEST_F(TrainingLoss, LeavesWhatARunHasMadeWholeAndItsCurveComplete) {
  const auto records = RecordProgram(TrainWords(root()), root(), dir_.path() / "log");
  undisturbed_ = Losses(root() / "run");
  ASSERT_EQ(undisturbed_.size(), size_t{kSteps});
  const auto faults = FaultsOfReplay(records, root(), NumberOfStates(400),
                                     [&](const LostPower& lost) { return FaultOf(lost); });
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
}

// Checks the replay itself: without the syncs of its rows, the curve must have gaps.
TEST_F(TrainingLoss, IsSeenWhereTheCurveIsNotSynced) {
  auto records = RecordProgram(TrainWords(root()), root(), dir_.path() / "log");
  undisturbed_ = Losses(root() / "run");
  std::erase_if(records, [&](const IoRecord& record) {
    return record.kind == IoKind::kSync && record.path == root() / "run" / "metrics.jsonl";
  });
  const auto faults = FaultsOfReplay(records, root(), NumberOfStates(400),
                                     [&](const LostPower& lost) { return FaultOf(lost); });
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults[0].find("without the loss of step"), std::string::npos) << faults[0];
}

TEST_F(TrainingLoss, EndsInTheSameBitsOnceTheMachineIsBack) {
  const auto records = RecordProgram(TrainWords(root()), root(), dir_.path() / "log");
  undisturbed_ = Losses(root() / "run");
  const auto faults = FaultsOfReplay(records, root(), std::min<size_t>(NumberOfStates(16), 200),
                                     [&](const LostPower& lost) -> std::string {
                                       const fs::path output = dir_.path() / "resumed.out";
                                       if (RunProgram(TrainWords(lost.disk), {}, output) != 0) {
                                         return "the run does not go on: " + Text(output);
                                       }
                                       const fs::path run = lost.disk / "run";
                                       if (!IsWhole(run / "adapter")) return "another adapter";
                                       if (Losses(run) != undisturbed_)
                                         return "other losses, or not all of them";
                                       return FaultOfResult(run);
                                     });
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
}

}  // namespace
}  // namespace tandem::tests
