#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/training/dist/ranks_run.h"

namespace tandem::training {

using Words = std::vector<std::string>;

inline Words Joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline bench::RandomModelSpec TinyOf(const std::string& family) {
  bench::RandomModelSpec model;
  model.config = bench::TinyModelConfig(family);
  model.with_tokenizer = true;
  return model;
}

// Whole runs whose ranks, threads of this process, share each matrix (tensor parallelism).
class TensorRunTest : public RanksRunTest {
 protected:
  using RanksRunTest::RanksRunTest;

  static Words Tensor(int ranks, const Words& more = {}) {
    return Joined(more, {"ici_tensor_parallelism=" + std::to_string(ranks)});
  }
  // The ranks also divide the rows between shared layers.
  static Words Divided(int ranks, const Words& more = {}) {
    return Joined(more, {"ici_tensor_sequence_parallelism=" + std::to_string(ranks)});
  }

  // Runs of tensor 2, data 2 x tensor 2 and fsdp 2 x tensor 2 have the losses of one rank.
  void ExpectTheLossesOfOneRank(Words words, bool divided = false, double tolerance = 1e-4) {
    words.insert(words.begin(), "precision.compute=f32");
    Run(Spec(words), "one");
    ASSERT_FALSE(Losses("one").empty());
    int number = 0;
    for (const auto& [ranks, more] :
         {std::pair<int, Words>{2, {}}, {4, {}}, {4, {"ici_fsdp_parallelism=2"}}}) {
      const std::string name = "split-" + std::to_string(number++);
      const Words all = Joined(words, more);
      RunOn(ranks, Spec(divided ? Divided(2, all) : Tensor(2, all)), name);
      ExpectNear("one", name, tolerance);
    }
  }

  // The message of a run that all ranks refuse; empty when a rank does not.
  std::string Refused(int ranks, const Words& words) {
    const auto faults = OnRanks(ranks, [&](Collectives& group) {
      JobContext context;
      context.dir = dir_.path() / "refused";
      RunTraining(Spec(words), context, &group);
    });
    for (const auto& fault : faults) {
      if (!fault) return "";
    }
    return ToError(faults.front()).what();
  }
};

}  // namespace tandem::training
