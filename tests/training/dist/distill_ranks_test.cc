// Distillation on several ranks: the first one asks the teacher for all.

#include "tests/training/dist/ranks_run.h"
#include "tests/training/teacher/stub_teacher.h"

namespace tandem::training {
namespace {

class DistillRanksTest : public RanksRunTest {
 protected:
  TrainSpec Distilled(std::vector<std::string> words = {}) const {
    words.insert(words.end(),
                 {"kind=distill", "distill.teacher_url=" + teacher_.url(), "distill.top_k=5",
                  "world_invariant=4", "data.eval=" + (dir_.path() / "train.txt").string()});
    return Spec(words);
  }

  StubTeacher teacher_;
};

TEST_F(DistillRanksTest, HaveTheBitsOfOneAndOneOfThemAsks) {
  RunOn(1, Distilled(), "one");
  const int64_t asked = teacher_.scored();
  EXPECT_EQ(asked, 80);
  RunOn(2, Distilled(), "two");
  EXPECT_EQ(teacher_.scored(), 2 * asked);
  EXPECT_EQ(Losses("two"), Losses("one"));
  EXPECT_EQ(Weights("two"), Weights("one"));
}

TEST_F(DistillRanksTest, ThatShareTheParametersHaveTheSameBits) {
  RunOn(1, Distilled(), "one");
  RunOn(2, Distilled({"ici_fsdp_parallelism=2"}), "fsdp");
  EXPECT_EQ(Losses("fsdp"), Losses("one"));
  EXPECT_EQ(Weights("fsdp"), Weights("one"));
}

}  // namespace
}  // namespace tandem::training
