#include "training/program/program.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "bench/models/random_model.h"
#include "tests/support/paths.h"
#include "training/lora/lora.h"

namespace tandem::training {
namespace {

using engine::DType;

Program RecordTiny(std::string_view family_name, DType dtype, std::vector<bool> trained = {},
                   int64_t lora_rank = 0) {
  const engine::FamilySpec& family = engine::FindFamilyByName(family_name);
  const engine::ModelConfig config = bench::TinyModelConfig(family_name);
  RecordOptions options;
  options.rows = 64;
  options.row_length = 32;
  options.max_segments = 6;
  options.dtype = dtype;
  options.trained = std::move(trained);
  LoraOptions lora;
  lora.rank = lora_rank;
  if (lora_rank > 0) options.lora = ChooseLoraTargets(lora, family, config);
  return Record(family, config, options);
}

std::string ReadGolden(const std::string& name) {
  const std::ifstream file(tests::SourceDir() / "tests/golden/programs" / name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// After a wanted change, check the difference and copy the file that the failure names.
void ExpectGolden(const Program& program, const std::string& name) {
  const std::string text = Print(program);
  if (text == ReadGolden(name)) return;
  const std::string now = testing::TempDir() + name;
  std::ofstream(now) << text;
  ADD_FAILURE() << "tests/golden/programs/" << name << " differs from " << now;
}

TEST(Program, PrintsAsRecordedForLlama) {
  ExpectGolden(RecordTiny("llama", DType::kBF16), "llama-tiny-bf16.txt");
}

TEST(Program, PrintsAsRecordedForMiniGpt) {
  ExpectGolden(RecordTiny("minigpt", DType::kBF16), "minigpt-tiny-bf16.txt");
}

TEST(Program, PrintsAsRecordedForGemma2) {
  ExpectGolden(RecordTiny("gemma2", DType::kBF16), "gemma2-tiny-bf16.txt");
}

TEST(Program, PrintsAsRecordedForAnAdapterOfLlama) {
  ExpectGolden(RecordTiny("llama", DType::kBF16, {}, 4), "llama-tiny-lora-bf16.txt");
}

TEST(Program, BuffersThatLiveTogetherDoNotOverlap) {
  for (const engine::FamilySpec* family : engine::Families()) {
    for (const auto& [dtype, rank] :
         {std::pair{DType::kF32, 0}, {DType::kBF16, 0}, {DType::kF32, 5}, {DType::kBF16, 5}}) {
      const Program program = RecordTiny(family->name, dtype, {}, rank);

      for (size_t i = 0; i < program.buffers.size(); ++i) {
        const Buffer& a = program.buffers[i];
        if (a.first_step < 0) continue;
        EXPECT_LE(a.offset + a.bytes, program.arena_bytes);
        EXPECT_EQ(a.offset % 64, 0);
        for (size_t j = i + 1; j < program.buffers.size(); ++j) {
          const Buffer& b = program.buffers[j];
          if (b.first_step < 0) continue;
          const bool together = a.first_step <= b.last_step && b.first_step <= a.last_step;
          const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
          EXPECT_FALSE(together && overlap) << a.role << " and " << b.role;
        }
      }
    }
  }
}

TEST(Program, ArenaIsSmallerThanTheSumOfItsBuffers) {
  const Program program = RecordTiny("llama", DType::kBF16);

  int64_t sum = 0;
  for (const Buffer& buffer : program.buffers) sum += buffer.bytes;
  EXPECT_LT(program.arena_bytes, sum / 2);
}

TEST(Program, TrainingCostsThreeForwardsWhenAllIsTrained) {
  const Program program = RecordTiny("llama", DType::kF32);

  EXPECT_EQ(program.training_flops(), 3 * program.forward_flops());
}

TEST(Program, NothingIsRecordedBelowTheLowestTrainedWeight) {
  const Program all = RecordTiny("llama", DType::kF32);
  std::vector<bool> head_only(all.weight_specs.size(), false);
  head_only[head_only.size() - 1] = true;  // the final norm or the head
  const Program program = RecordTiny("llama", DType::kF32, head_only);

  EXPECT_LE(program.backward.size(), 1u);
  EXPECT_LT(program.arena_bytes, all.arena_bytes);
}

}  // namespace
}  // namespace tandem::training
