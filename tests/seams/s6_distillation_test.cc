// Seam S6: distillation between a served teacher and a trained student. What the server answers is
// what training computes, so a student that is its own teacher has nothing to learn.

#include <algorithm>
#include <cmath>
#include <fstream>

#include "engine/base/error.h"
#include "tests/server/app/app_fixture.h"
#include "training/run/run.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class DistillationSeam : public server::AppTest {
 protected:
  DistillationSeam() {
    std::ofstream text(dir_ / "train.txt");
    for (int i = 0; i < 24; ++i) {
      text << "The dog number " << i << " ran to the river.\n<|endoftext|>\n";
    }
    tests::TinyModelOptions small;
    small.hidden_dim = 16;
    small.n_layers = 1;
    fs::create_directory(dir_ / "small");
    tests::WriteTinyModel(dir_ / "small", small);
    small.special_tokens = {"<bos>", "<end>"};
    fs::create_directory(dir_ / "other");
    tests::WriteTinyModel(dir_ / "other", small);
  }

  void Distil(const std::string& run, const fs::path& student,
              const std::vector<std::string>& words = {}) {
    std::vector<std::string> all = {
        "kind=train.distill",
        "load_parameters_path=" + student.string(),
        "data.train=" + (dir_ / "train.txt").string(),
        "distill.teacher_url=http://127.0.0.1:" + std::to_string(app_->port()) + "/v1",
        "distill.alpha=1",
        "max_target_length=64",
        "steps=20",
        "learning_rate=1e-2",
        "per_device_batch_size=2",
        "resources.threads=1"};
    all.insert(all.end(), words.begin(), words.end());
    JobContext context;
    context.dir = dir_ / run;
    training::RunTraining(training::ParseTrainSpec("{}", "spec", all), context);
  }

  std::vector<double> SoftLosses(const std::string& run) const {
    std::vector<double> values;
    std::ifstream file(dir_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto row = server::Json::parse(line);
      if (row.contains("distill/soft_loss")) values.push_back(row["distill/soft_loss"]);
    }
    return values;
  }

  tests::TemporaryDir dir_;
};

TEST_F(DistillationSeam, AStudentThatIsItsOwnTeacherHasNothingToLearn) {
  StartApp();
  Distil("self", directory_->path() / "tiny", {"steps=2", "learning_rate=0", "dtype=float32"});
  const auto losses = SoftLosses("self");
  ASSERT_EQ(losses.size(), 2u);
  for (const double loss : losses) EXPECT_NEAR(loss, 0, 1e-6);
}

TEST_F(DistillationSeam, ASmallStudentComesNearerToItsServedTeacher) {
  StartApp();
  for (const std::string temperature : {"1", "2"}) {
    const std::string run = "small" + temperature;
    Distil(run, dir_ / "small", {"distill.temperature=" + temperature});
    const auto losses = SoftLosses(run);
    ASSERT_EQ(losses.size(), 20u);
    EXPECT_LT(losses.back(), losses.front() * 0.9) << temperature;
  }
}

TEST_F(DistillationSeam, AStudentWithAnotherTokenizerIsRefused) {
  StartApp();
  try {
    Distil("other", dir_ / "other");
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("the tokenizers of the teacher 'tiny' and of the "
                        "student differ"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(DistillationSeam, MoreTokensThanTheServerGivesAreRefusedWithItsWords) {
  StartApp();
  try {
    Distil("many", dir_ / "small", {"distill.top_k=21"});
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/v1/completions: status 400"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("logprobs"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tandem
