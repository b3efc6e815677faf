// The table of families (engine/model/family_table.h) in the columns GGUF and MaxText: a model of
// every family goes there and back, or the refusal names the family and the remedy. The seams do
// the same for serve, train and LoRA (tests/seams/s1_remat_test.cc).

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/models/random_model.h"
#include "convert/formats/gguf/gguf_config.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/tensors/model_source.h"
#include "engine/base/attempt.h"
#include "engine/base/quoted.h"
#include "engine/model/families/gguf_architecture.h"
#include "engine/model/family_table.h"
#include "tests/convert/convert_fixture.h"
#include "tests/convert/formats/maxtext/maxtext_trees.h"
#include "tests/convert/gguf_models.h"
#include "tests/support/gguf_writer.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::FamilySpec;
using engine::FamilySupport;
using engine::ModelConfig;

// Parts that a format may not hold. Tiny models have every optional part of their family.
std::vector<void (*)(ModelConfig& config)> PlainerParts() {
  std::vector<void (*)(ModelConfig & config)> parts{
      [](ModelConfig& c) { c.windowed_layers.clear(); },
      [](ModelConfig& c) { c.tied_embeddings = !c.tied_embeddings; },
      [](ModelConfig& c) { c.layer_ropes.clear(); },
  };
  parts.insert(parts.end(), std::begin(kPlainerParts), std::end(kPlainerParts));
  return parts;
}

// The family's tiny model, or the one of MaxText's tests: some trees need other numbers of layers.
ModelConfig TinyForMaxText(const FamilySpec& family) {
  ModelConfig config = bench::TinyModelConfig(family.name);
  for (const TreeCase& tree : TreeCases()) {
    if (tree.family != family.name) continue;
    if (tree.change != nullptr) tree.change(config);
    break;
  }
  return config;
}

// `whole` with as many of its parts as `check` accepts; it throws to refuse.
template <typename Check>
std::optional<ModelConfig> RichestModel(const FamilySpec& family, const ModelConfig& whole,
                                        const Check& check) {
  const auto plainer = PlainerParts();
  for (int n_changes = 0; n_changes <= static_cast<int>(plainer.size()); ++n_changes) {
    for (uint32_t changes = 0; changes < 1U << plainer.size(); ++changes) {
      if (std::popcount(changes) != n_changes) continue;
      ModelConfig config = whole;
      for (size_t i = 0; i < plainer.size(); ++i) {
        if ((changes >> i & 1) != 0) plainer[i](config);
      }
      const auto refused = ErrorOf([&] {
        config = family.parse_config(family.write_config(config), "tiny");
        check(config);
      });
      if (!refused) return config;
    }
  }
  return std::nullopt;
}

class FamilySupportTest : public ConversionTest {
 protected:
  // One tensor per expert, whatever the files have.
  static std::map<std::string, std::vector<std::byte>> NumbersOf(const fs::path& model) {
    std::map<std::string, std::vector<std::byte>> numbers;
    const auto source = OpenModelFiles(model, std::nullopt);
    for (int64_t part = 0; part < source->parts(); ++part) {
      source->ReadPart(part, [&](const auto& tensor, const auto& bytes) {
        numbers[tensor.name] = {bytes.begin(), bytes.end()};
      });
    }
    return numbers;
  }
  fs::path WriteTiny(const ModelConfig& config) const {
    const fs::path dir = dir_.path() / "model";
    fs::remove_all(dir);
    bench::WriteRandomModel({.config = config, .with_tokenizer = true}, dir);
    return dir;
  }
  void ExpectThereAndBack(const fs::path& model, ConvertSpec there) {
    fs::remove_all(there.target);
    fs::remove_all(dir_.path() / "back");
    Run(there);
    ConvertSpec back = Spec(there.target, "hf", "back");
    back.dtype = "bf16";
    Run(back);
    const auto wanted = NumbersOf(model), read = NumbersOf(back.target);
    ASSERT_EQ(read.size(), wanted.size());
    for (const auto& [name, bytes] : wanted) {
      ASSERT_TRUE(read.contains(name)) << name;
      EXPECT_TRUE(read.at(name) == bytes) << name << " has other numbers";
    }
  }
};

TEST_F(FamilySupportTest, GgufHoldsAModelOfEveryFamilyThatTheTableSays) {
  for (const FamilySpec* family : engine::Families()) {
    const FamilySupport support = engine::SupportOf(*family);
    ASSERT_EQ(support.gguf_in, support.gguf_out) << family->name;
    if (!support.gguf_out) continue;
    SCOPED_TRACE(family->name);
    const ConvertSpec there = Spec(dir_.path() / "model", "gguf", "model.gguf");
    // The writer reads its own file, and refuses what the format cannot say.
    const auto accept = [&](const ModelConfig& tiny) {
      GgufArchitectureFor(tiny, "tiny");
      WriteTiny(tiny);
      fs::remove(there.target);
      Run(there);
    };
    const ModelConfig tiny = AsInGguf(*family, bench::TinyModelConfig(family->name));
    const auto config = RichestModel(*family, tiny, accept);
    ASSERT_TRUE(config) << "GGUF holds no tiny model of this family";
    ExpectThereAndBack(WriteTiny(*config), there);
  }
}

TEST_F(FamilySupportTest, MaxTextHoldsAModelOfEveryFamilyThatTheTableSays) {
  for (const FamilySpec* family : engine::Families()) {
    const FamilySupport support = engine::SupportOf(*family);
    ASSERT_EQ(support.maxtext_in, support.maxtext_out) << family->name;
    if (!support.maxtext_out) continue;
    int n_layouts = 0;
    for (const bool is_scanned : {true, false}) {
      SCOPED_TRACE(std::string(family->name) + (is_scanned ? " scanned" : " unscanned"));
      const auto config = RichestModel(
          *family, TinyForMaxText(*family),
          [&](const ModelConfig& tiny) { MaxTextLeaves(tiny, {.is_scanned = is_scanned}); });
      if (!config) continue;
      ++n_layouts;
      ConvertSpec there = Spec(WriteTiny(*config), "maxtext", "maxtext");
      there.layout = is_scanned ? "scanned" : "unscanned";
      ExpectThereAndBack(dir_.path() / "model", there);
    }
    EXPECT_GT(n_layouts, 0) << "MaxText holds no tiny model of " << family->name;
  }
}

TEST_F(FamilySupportTest, GgufRefusesEveryOtherFamilyByNameAndSaysWhatToDo) {
  for (const FamilySpec* family : engine::Families()) {
    if (engine::SupportOf(*family).gguf_out) continue;
    SCOPED_TRACE(family->name);
    const fs::path model = WriteTiny(bench::TinyModelConfig(family->name));
    const ConvertSpec there = Spec(model, "gguf", "model.gguf");
    ExpectFault(there, ErrorCode::kUnsupported, "family " + Quoted(std::string(family->name)));
    ExpectFault(there, ErrorCode::kUnsupported, "convert it to hf or native");

    // The reader knows no file of it. Its architecture would have this name or a similar one.
    const std::string name = "not-" + std::string(family->name);
    tests::GgufWriter file;
    file.Add("general.architecture", name);
    file.AddTensor("token_embd.weight", tests::kGgufF32, {1, 1}, std::string(4, '\0'));
    file.Write(dir_.path() / "unknown.gguf");
    const ConvertSpec back = Spec(dir_.path() / "unknown.gguf", "hf", "back");
    ExpectFault(back, ErrorCode::kUnsupported, Quoted(name));
    ExpectFault(back, ErrorCode::kUnsupported, "load from safetensors");
  }
}

TEST_F(FamilySupportTest, MaxTextRefusesEveryOtherFamilyByNameAndSaysWhatToDo) {
  const fs::path llama = dir_.path() / "llama", checkpoint = dir_.path() / "checkpoint";
  bench::WriteRandomModel({.config = bench::TinyLlamaConfig(), .with_tokenizer = true}, llama);
  Run(Spec(llama, "maxtext", "checkpoint"));
  for (const FamilySpec* family : engine::Families()) {
    if (engine::SupportOf(*family).maxtext_out) continue;
    SCOPED_TRACE(family->name);
    const fs::path model = WriteTiny(bench::TinyModelConfig(family->name));
    const std::string named = "family " + Quoted(std::string(family->name)) + " is not converted";
    const ConvertSpec there = Spec(model, "maxtext", "maxtext");
    ExpectFault(there, ErrorCode::kUnsupported, named);
    ExpectFault(there, ErrorCode::kUnsupported, "use hf or native instead");

    ConvertSpec back = Spec(checkpoint, "hf", "back");
    back.base = model;
    ExpectFault(back, ErrorCode::kUnsupported, named);
  }
}

}  // namespace
}  // namespace tandem::convert
