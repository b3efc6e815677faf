#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

// One model under all weight names that are in use.

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Rename = std::function<std::optional<std::string>(const std::string&)>;  // nullopt: omit

// Copies a golden model with other names.
void WriteRenamed(const tests::Golden& golden, const Rename& rename, const Json& config,
                  const std::filesystem::path& dir) {
  const ModelDir source = ModelDir::Open(golden.dir);
  std::vector<NamedTensor> tensors;
  for (const std::string& name : source.tensor_names()) {
    if (const auto renamed = rename(name)) {
      tensors.push_back({*renamed, *source.FindTensor(name)});
    }
  }
  WriteSafetensors(dir / "model.safetensors", tensors, {{"format", "pt"}});
  WriteFileAtomically(dir / "config.json", config.dump());
}

Json ConfigOf(const tests::Golden& golden) {
  return Json::parse(ReadWholeFile(golden.dir / "config.json", 1 << 20));
}

void ExpectTheSameModel(const tests::Golden& golden, const std::filesystem::path& renamed) {
  tests::ModelHarness a(golden.dir, {}), b(renamed, {});
  const std::vector<TokenId>& tokens = golden.sequences[0].input_ids;
  const std::vector<float> want = a.Prefill(tokens, 0), got = b.Prefill(tokens, 0);
  ASSERT_EQ(want.size(), got.size());
  EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0);
}

TEST(WeightNames, Gpt2ComesWithAPrefixAndWithoutItsMasks) {
  const tests::Golden golden = tests::LoadGolden("gpt2-tiny");
  const tests::TemporaryDir dir;
  size_t masks = 0;
  const Rename rename = [&](const std::string& name) -> std::optional<std::string> {
    if (!name.ends_with(".attn.bias")) return "transformer." + name;
    ++masks;
    return std::nullopt;
  };
  WriteRenamed(golden, rename, ConfigOf(golden), dir.path());

  EXPECT_EQ(masks, 2u) << "the golden has them, as the files of the hub do";
  ExpectTheSameModel(golden, dir.path());
}

TEST(WeightNames, Gemma3ComesInsideOfAModelWithEyes) {
  const tests::Golden golden = tests::LoadGolden("gemma3-text-tiny");
  const Json config{{"architectures", {"Gemma3ForConditionalGeneration"}},
                    {"model_type", "gemma3"},
                    {"text_config", ConfigOf(golden)}};
  const Rename renames[] = {
      [](const std::string& name) { return "language_model." + name; },
      [](const std::string& name) { return "model.language_model." + name.substr(6); }};
  for (const Rename& rename : renames) {
    const tests::TemporaryDir dir;
    WriteRenamed(golden, rename, config, dir.path());
    ExpectTheSameModel(golden, dir.path());
  }
}

}  // namespace
}  // namespace tandem::engine
