// MaxText's trees of families with experts, latent attention or cycles of layers: every number is
// looked up by the tables of maxtext_trees.h.

#include "tests/convert/formats/maxtext/maxtext_trees.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "bench/models/random_model.h"
#include "convert/formats/maxtext/maxtext.h"
#include "engine/model/families/family.h"
#include "tests/convert/formats/maxtext/maxtext_fixture.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using engine::ModelConfig;

std::string WithNumber(std::string text, std::string_view mark, int64_t number) {
  if (const size_t at = text.find(mark); at != std::string::npos) {
    text.replace(at, mark.size(), std::to_string(number));
  }
  return text;
}

// Compares a parameter with the tensors of its layers, number by number.
void ExpectParameter(const std::string& name, const ParameterRow& row,
                     const std::vector<int64_t>& layers, bool is_scanned, int64_t inner,
                     const Arrays& leaves, const Arrays& tensors) {
  SCOPED_TRACE(name);
  std::string axes = row.axes;
  std::vector<int64_t> shape = row.shape;
  if (is_scanned) {
    const auto n_layers = static_cast<int64_t>(layers.size());
    axes.insert(1, inner > 0 ? "BL" : "L");  // blocks of `inner` layers
    if (inner > 0) shape.insert(shape.begin() + 1, inner);
    shape.insert(shape.begin() + 1, inner > 0 ? n_layers / inner : n_layers);
  }
  const auto found = leaves.find("params.params.decoder." + name);
  ASSERT_NE(found, leaves.end());
  ASSERT_EQ(found->second.shape, shape);
  const std::vector<float> values = Floats(found->second);
  const bool has_inputs = axes.find('I') != std::string::npos;
  const size_t dimensions = axes.find('D');
  const int64_t head_dim = dimensions == std::string::npos ? 0 : shape[dimensions];
  int64_t loaded_expert = -1, loaded_layer = -1;
  std::vector<float> tensor;
  int64_t n_inputs = 1;
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t expert = 0, layer = 0, input = 0, output = 0, heads = 0;
    for (size_t axis = shape.size(), rest = i; axis-- > 0;) {
      const auto size = static_cast<size_t>(shape[axis]);
      const auto at = static_cast<int64_t>(rest % size);
      rest /= size;
      if (axes[axis] == 'E') expert = at;
      if (axes[axis] == 'L') layer += at;
      if (axes[axis] == 'B') layer += at * inner;
      if (axes[axis] == 'I') input = at;
      if (axes[axis] == 'O') output = at;
      if (axes[axis] == 'D') heads += at;
      if (axes[axis] == 'H') heads += at * head_dim;
    }
    if (head_dim > 0) {
      (has_inputs || axes.find('O') == std::string::npos ? output : input) = heads;
    }
    if (expert != loaded_expert || layer != loaded_layer) {
      const int64_t number = layers[static_cast<size_t>(layer)];
      const std::string from =
          WithNumber("model.layers.{}.", "{}", number) + WithNumber(row.tensor, "{E}", expert);
      ASSERT_TRUE(tensors.contains(from)) << from;
      tensor = Floats(tensors.at(from));
      n_inputs = static_cast<int64_t>(tensor.size()) / tensors.at(from).shape[0];
      loaded_expert = expert;
      loaded_layer = layer;
    }
    ASSERT_EQ(values[i],
              tensor[static_cast<size_t>(output * n_inputs + input)] * row.factor + row.added)
        << i;
  }
}

class MaxTextTreeTest : public MaxTextTest {
 protected:
  // Writes the case's model and returns its tensors.
  Arrays WriteModel(const TreeCase& tree) {
    ModelConfig config = bench::TinyModelConfig(tree.family);
    if (tree.change != nullptr) tree.change(config);
    fs::remove_all(model_);
    bench::WriteRandomModel({.config = config}, model_);
    return SourceTensors(model_);
  }

  // One tensor per expert, also of families that publish all in one.
  static Arrays SourceTensors(const fs::path& model) {
    Arrays tensors;
    const auto source = OpenModelFiles(model, std::nullopt);
    for (int64_t part = 0; part < source->parts(); ++part) {
      source->ReadPart(part, [&](const auto& tensor, const auto& bytes) {
        tensors[tensor.name] = ArrayOf(tensor.view, bytes);
      });
    }
    return tensors;
  }

  void Write(const std::string& layout, const fs::path& to) {
    fs::remove_all(to);
    ConvertSpec spec = Spec(model_, "maxtext", to);
    spec.layout = layout;
    Run(spec);
  }

  const fs::path model_ = dir_.path() / "model";
};

TEST_F(MaxTextTreeTest, HasTheNamesShapesAndNumbersOfItsTable) {
  for (const TreeCase& tree : TreeCases()) {
    SCOPED_TRACE(tree.family);
    const Arrays tensors = WriteModel(tree);
    for (const bool is_scanned : {true, false}) {
      if (is_scanned && !tree.has_scanned) continue;
      Write(is_scanned ? "scanned" : "unscanned", checkpoint_);
      const Arrays leaves = LeavesOf(checkpoint_);
      size_t n_leaves = 0;
      for (const LayerGroup& group : tree.groups) {
        for (const ParameterRow& row : group.rows) {
          if (is_scanned) {
            ExpectParameter(std::string(group.scanned) + "." + row.leaf, row, group.layers, true,
                            group.inner, leaves, tensors);
            ++n_leaves;
            continue;
          }
          for (size_t i = 0; i < group.layers.size(); ++i) {
            ExpectParameter(std::string(group.unscanned[i]) + "." + row.leaf, row,
                            {group.layers[i]}, false, 0, leaves, tensors);
            ++n_leaves;
          }
        }
      }
      using Shape = std::vector<int64_t>;
      EXPECT_EQ(leaves.at("params.params.token_embedder.embedding").shape,
                Shape({tree.vocabulary, 48}));
      EXPECT_EQ(leaves.at("params.params.decoder.decoder_norm.scale").shape, Shape({48}));
      const bool is_tied = !tensors.contains("lm_head.weight");
      EXPECT_EQ(leaves.contains("params.params.decoder.logits_dense.kernel"), !is_tied);
      EXPECT_EQ(leaves.size(), n_leaves + tree.n_others + (is_tied ? 2 : 3));
    }
  }
}

// With the record beside the checkpoint, and as another program writes it, from the base alone.
TEST_F(MaxTextTreeTest, ComesBackByteForByte) {
  for (const TreeCase& tree : TreeCases()) {
    const Arrays original = WriteModel(tree);
    for (const std::string layout : {"scanned", "unscanned"}) {
      if (layout == "scanned" && !tree.has_scanned) continue;
      SCOPED_TRACE(tree.family + (" " + layout));
      Write(layout, checkpoint_);
      fs::remove_all(out_);
      Run(Spec(checkpoint_, "hf", out_));
      ExpectSame(SourceTensors(out_), original);

      const fs::path foreign = dir_.path() / "foreign";
      WriteCheckpoint(LeavesOf(checkpoint_), foreign);
      fs::remove_all(out_);
      ConvertSpec spec = Spec(foreign, "hf", out_);
      spec.base = model_;
      Run(spec);
      ExpectSame(SourceTensors(out_), original);
    }
  }
}

TEST_F(MaxTextTreeTest, APartOfTheExpertsIsRefusedByName) {
  const TreeCase tree = TreeCases().at(1);
  WriteModel(tree);
  Write("scanned", checkpoint_);
  Arrays leaves = LeavesOf(checkpoint_);
  const std::string wo = "params.params.decoder.layers.moe_block.wo";
  ConvertSpec spec = Spec(checkpoint_, "hf", out_);
  spec.base = model_;

  Array whole = leaves.at(wo);
  leaves.at(wo).shape.front() = 19;
  leaves.at(wo).bytes.resize(whole.bytes.size() / 20 * 19);
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec,
              "'decoder.layers.moe_block.wo' has the shape [19, 2, 24, 48], but config.json "
              "requires [20, 2, 24, 48]");

  leaves.erase(wo);
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec,
              "'decoder.layers.moe_block.wo' (model.layers.0.mlp.experts.0.down_proj.weight) is "
              "missing");

  leaves["params.params.decoder.layers.moe_block.w2"] = whole;
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec, "'decoder.layers.moe_block.w2' is unknown for the qwen3_moe model");
}

TEST_F(MaxTextTreeTest, LayersThatItCannotHoldAreRefused) {
  struct Refusal {
    TreeCase tree;
    const char* words;
  };
  const auto odd = [](ModelConfig& c) {
    c.n_layers = 3;
    c.windowed_layers = {true, false, true};
  };
  const auto swapped = [](ModelConfig& c) { c.windowed_layers = {false, true}; };
  for (const Refusal& refusal :
       {Refusal{{"qwen3_moe", nullptr, {}},
                "only some layers of this model have a tensor such as "
                "'model.layers.1.mlp.gate.weight'"},
        Refusal{{"deepseek_v3", nullptr, {}},
                "no counterpart for tensor 'model.layers.0.self_attn.kv_a_proj_with_mqa.bias'"},
        Refusal{{"gpt_oss", odd, {}}, "has layers in scanned groups of 2; this model has 3"},
        Refusal{{"gpt_oss", swapped, {}}, "layer 0 has no sliding window"},
        Refusal{{"gemma4", nullptr, {}}, "has no scanned layers; choose the unscanned layout"},
        Refusal{{"qwen3_next",
                 [](ModelConfig& c) {
                   c.recurrent.layers = {true, true, false, true};
                 },
                 {}},
                "layer 2 has attention, in MaxText's order of layers it is the other way"}}) {
    WriteModel(refusal.tree);
    ExpectFault(Spec(model_, "maxtext", out_), refusal.words);
    EXPECT_FALSE(fs::exists(out_));
  }
}

}  // namespace
}  // namespace tandem::convert
