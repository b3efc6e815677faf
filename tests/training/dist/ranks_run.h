#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/training/dist/on_ranks.h"
#include "tests/training/tiny_run.h"

namespace tandem::training {

// Whole runs on several ranks, which are threads of this process.
class RanksRunTest : public TinyRunTest {
 protected:
  static constexpr int64_t kSteps = 6;

  using TinyRunTest::TinyRunTest;

  TrainSpec Spec(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"load_parameters_path=" + (dir_.path() / "base").string(),
                                      "dataset_path=" + (dir_.path() / "train.txt").string(),
                                      "max_target_length=32",
                                      "per_device_batch_size=2",
                                      "gradient_accumulation_steps=4",
                                      "steps=" + std::to_string(kSteps),
                                      "learning_rate=1e-2",
                                      "resources.threads=1"};
    words.insert(words.end(), more.begin(), more.end());
    return ParseTrainSpec("{}", "test", words);
  }

  // Runs on `size` ranks, 1 included. The first rank reports to events_.
  TrainOutcome RunOn(int size, const TrainSpec& spec, const std::string& name,
                     std::function<void(const ProgressEvent&)> watch = {}) {
    TrainOutcome outcome;
    MustWorkOnRanks(size, [&](Collectives& ranks) {
      JobContext context;
      context.dir = dir_.path() / name;
      context.stop = stop_.get_token();
      if (ranks.is_first()) {
        context.report = [&](const ProgressEvent& event) {
          events_.push_back(event);
          if (watch) watch(event);
        };
      } else {
        context.report = [](const ProgressEvent& event) {
          ADD_FAILURE() << "another rank reports " << event.message;
        };
      }
      const TrainOutcome one = RunTraining(spec, context, &ranks);
      if (ranks.is_first()) outcome = one;
    });
    stop_ = std::stop_source();
    return outcome;
  }

  // A file of the last checkpoint.
  std::string Checkpoint(const std::string& name, const std::string& file) const {
    char step[16];
    std::snprintf(step, sizeof step, "%012lld", static_cast<long long>(kSteps));
    return engine::ReadWholeFile(dir_.path() / name / "checkpoints" / step / file, 1 << 28);
  }

  void ExpectNear(const std::string& a, const std::string& b, double tolerance) const {
    const auto of_a = Losses(a);
    const auto of_b = Losses(b);
    ASSERT_EQ(of_a.size(), of_b.size());
    for (const auto& [step, loss] : of_a) {
      EXPECT_NEAR(loss, of_b.at(step), tolerance * std::abs(loss))
          << a << ", " << b << ", " << step;
    }
  }
};

}  // namespace tandem::training
