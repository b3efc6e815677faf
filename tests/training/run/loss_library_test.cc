// train.loss_library: the loss of a library instead of cross-entropy.

#include "training/loss/loss_library.h"

#include <cmath>
#include <fstream>

#include "engine/base/error.h"
#include "tests/training/tiny_run.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class LossLibraryTest : public TinyRunTest {
 protected:
  TrainSpec SpecWith(const std::vector<std::string>& words) {
    std::vector<std::string> all = {"model.load_parameters_path=" + (dir_.path() / "base").string(),
                                    "data.train=" + (dir_.path() / "train.txt").string(),
                                    "data.max_target_length=32",
                                    "train.steps=6",
                                    "train.per_device_batch_size=2",
                                    "train.learning_rate=1e-2",
                                    "precision.compute=f32"};
    all.insert(all.end(), words.begin(), words.end());
    return ParseTrainSpec("version: 1\n", "spec", all);
  }

  std::vector<double> Losses(const std::string& run) {
    std::vector<double> losses;
    std::ifstream rows(dir_.path() / run / "metrics.jsonl");
    for (std::string line; std::getline(rows, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("learning/loss")) losses.push_back(row["learning/loss"].get<double>());
    }
    return losses;
  }

  std::string ErrorWith(const std::vector<std::string>& words) {
    try {
      Run(SpecWith(words), "refused");
    } catch (const Error& error) {
      return error.what();
    }
    return "not refused";
  }
};

// With gamma 0 the focal loss is cross-entropy.
TEST_F(LossLibraryTest, OfCrossEntropyTrainsAsCrossEntropyDoes) {
  Run(SpecWith({}), "plain");
  Run(SpecWith(
          {std::string("train.loss_library=") + TANDEM_FOCAL_LOSS, "train.loss_options=gamma=0"}),
      "library");

  const std::vector<double> plain = Losses("plain"), library = Losses("library");
  ASSERT_EQ(plain.size(), 6u);
  ASSERT_EQ(library.size(), 6u);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(library[i], plain[i], 1e-5) << i;
}

TEST_F(LossLibraryTest, OfItsOwnIsReportedAndFalls) {
  Run(SpecWith({std::string("train.loss_library=") + TANDEM_FOCAL_LOSS,
                "train.loss_options=gamma=2", "train.eval_interval=3",
                "data.eval=" + (dir_.path() / "train.txt").string()}),
      "focal");
  Run(SpecWith({}), "plain");

  const std::vector<double> focal = Losses("focal");
  EXPECT_LT(focal.back(), focal.front());
  EXPECT_LT(focal.front(), Losses("plain").front()) << "the factor is below 1";
  const std::string rows = engine::ReadWholeFile(dir_.path() / "focal/metrics.jsonl", 1 << 20);
  EXPECT_EQ(rows.find("perplexity"), std::string::npos);
  EXPECT_NE(rows.find("eval/avg_loss"), std::string::npos);
}

TEST_F(LossLibraryTest, ThatIsAnotherThanTheCheckpointsIsNoted) {
  const std::string library = std::string("train.loss_library=") + TANDEM_FOCAL_LOSS;
  Run(SpecWith({library, "train.loss_options=gamma=2", "train.steps=2"}), "run");
  Run(SpecWith({library, "train.loss_options=gamma=2", "train.steps=3"}), "run");
  EXPECT_EQ(CountEvents("warning", "resuming with a changed loss"), 0);
  Run(SpecWith({library, "train.loss_options=gamma=0", "train.steps=4"}), "run");
  EXPECT_EQ(CountEvents("warning", "a changed loss_options: \"gamma=2\" became \"gamma=0\""), 1);
  EXPECT_EQ(CountEvents("warning", "a changed loss_library"), 0);
  Run(SpecWith({"train.steps=5"}), "run");
  EXPECT_EQ(CountEvents("warning", "a changed loss_library"), 1);
}

TEST_F(LossLibraryTest, ThatCannotBeUsedEndsTheRunWithTheReason) {
  const auto library = [](const std::string& path) { return "train.loss_library=" + path; };
  const auto expect = [&](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_NE(error.find("train.loss"), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  expect(ErrorWith({library((dir_.path() / "none.so").string())}), "is no file");
  expect(ErrorWith({library((dir_.path() / "train.txt").string())}), "train.txt");
  expect(ErrorWith({library(TANDEM_LOSS_WITHOUT_SYMBOL)}), "has no tandem_loss_functions");
  expect(ErrorWith({library(TANDEM_LOSS_OF_ANOTHER_VERSION)}), "another version");
  expect(ErrorWith({library(TANDEM_LOSS_WITHOUT_COMPUTE)}), "no function open or compute");
  expect(ErrorWith({library(TANDEM_FOCAL_LOSS), "train.loss_options=gamma=-1"}),
         "options must be gamma=NUMBER");
  expect(ErrorWith({library(TANDEM_LOSS_THAT_FAILS)}), "failed: 'xxx");
}

TEST_F(LossLibraryTest, IsRefusedBesideOtherLosses) {
  const auto fault = [&](const std::vector<std::string>& words) {
    try {
      SpecWith(words);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  const std::string library = std::string("train.loss_library=") + TANDEM_FOCAL_LOSS;
  EXPECT_NE(fault({library, "train.z_loss=1e-4"}).find("train.z_loss: must be 0"),
            std::string::npos);
  EXPECT_NE(fault({library, "kind=train.dpo"}).find("must not be set for train.dpo"),
            std::string::npos);
  EXPECT_NE(fault({"train.loss_options=gamma=1"}).find("train.loss_library: must be given"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::training
