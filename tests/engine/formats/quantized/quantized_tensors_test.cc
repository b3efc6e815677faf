#include "engine/formats/quantized/quantized_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/support/paths.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Weights as the libraries of the methods store and decode them (tests/transformers/quantized.py).
std::vector<fs::path> MethodFolders() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(tests::SourceDir() / "tests/golden/quantized")) {
    folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::vector<float> FloatsOf(const ConstTensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  ConvertToF32(view, values);
  return values;
}

TEST(QuantizedTensors, EveryMethodDecodesAsItsOwnLibrary) {
  const std::vector<fs::path> folders = MethodFolders();
  ASSERT_GE(folders.size(), 12u);
  for (const fs::path& folder : folders) {
    const ModelDir dir = ModelDir::Open(folder);
    const auto expected = SafetensorsFile::Open(folder / "expected.safetensors");
    for (const std::string& name : expected.names()) {
      SCOPED_TRACE(folder.filename().string() + " " + name);
      const StoredTensor* stored = dir.FindStored(name);
      ASSERT_NE(stored, nullptr);
      StoredTensor matrix = *stored;
      ASSERT_EQ(matrix.view.shape, expected.Find(name)->shape);
      if (matrix.view.shape.size() == 3) {  // experts: all their rows
        const std::vector<int64_t> shape = matrix.view.shape;
        matrix.view.shape = {shape[0] * shape[1], shape[2]};
      }
      const std::vector<float> want = FloatsOf(*expected.Find(name)), got = DecodeTensor(matrix);
      for (size_t i = 0; i < want.size(); ++i) {
        // The libraries multiply the scales in another order in places.
        ASSERT_NEAR(got[i], want[i], 2e-7 * std::abs(want[i])) << i;
      }
      // Pieces equal the whole.
      std::vector<float> rows(static_cast<size_t>(3 * matrix.row_elements()));
      ReadRows(matrix, 5, 3, rows.data());
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), got.begin() + 5 * matrix.row_elements()));
    }
  }
}

TEST(QuantizedTensors, OnlyTheWeightsAndPlainTensorsRemain) {
  const fs::path root = tests::SourceDir() / "tests/golden/quantized";
  const auto names = [&](const char* folder) {
    return ModelDir::Open(root / folder).tensor_names();
  };

  EXPECT_EQ(names("awq"), (std::vector<std::string>{"a.bias", "a.weight"}));
  EXPECT_EQ(names("fp8-blocks"), std::vector<std::string>{"a.weight"});
  EXPECT_EQ(names("mxfp4"), std::vector<std::string>{"e.up_blocks"});
  EXPECT_EQ(names("bitsandbytes"), (std::vector<std::string>{"a.weight", "b.weight", "c.weight"}));
}

TEST(QuantizedTensors, IntegersOfOneScaleAreMovedExactly) {
  const fs::path root = tests::SourceDir() / "tests/golden/quantized";
  const std::map<std::string, int> bits = {
      {"awq", 8},    {"gptq", 8},         {"gptq-symmetric", 4}, {"gptq-act-order", 0},
      {"gptq-8", 8}, {"compressed-4", 4}, {"compressed-8", 8},   {"compressed-4-zeros", 8}};
  for (const auto& [folder, expected] : bits) {
    SCOPED_TRACE(folder);
    const ModelDir dir = ModelDir::Open(root / folder);
    const StoredTensor& tensor = *dir.FindStored("a.weight");
    EXPECT_EQ(tensor.encoded->ExactBits(), expected);
    if (expected == 0) continue;
    std::vector<float> row(static_cast<size_t>(tensor.row_elements()));
    ReadRows(tensor, 7, 1, row.data());
    for (int64_t i = 0; i < tensor.row_elements(); ++i) {
      EncodedGroup group;
      tensor.encoded->ReadGroup(7, i / 32, &group);
      EXPECT_EQ(group.scale * static_cast<float>(group.q[i % 32]), row[static_cast<size_t>(i)]);
      EXPECT_LE(std::abs(group.q[i % 32]), expected == 4 ? 8 : 128);
    }
  }
}

// A made-up checkpoint in memory, for messages.
class Checkpoint {
 public:
  Checkpoint& Add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    tensors_[name].view = {bytes_.data(), dtype, std::move(shape)};
    return *this;
  }
  // With these bytes, which must outlive the checkpoint.
  Checkpoint& Add(const std::string& name, DType dtype, std::vector<int64_t> shape,
                  std::span<const std::byte> bytes) {
    tensors_[name].view = {bytes.data(), dtype, std::move(shape)};
    return *this;
  }
  // The message and code of JoinQuantized.
  std::string Fault(const Json& config, ErrorCode code = ErrorCode::kDataLoss) {
    StoredTensors tensors = tensors_;
    const auto error = ErrorOf([&] {
      JoinQuantized(Json{{"quantization_config", config}}, "config.json", "model", &tensors);
    });
    if (!error) return "no error";
    EXPECT_EQ(error->code(), code);
    return error->what();
  }

 private:
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(1 << 16);
  StoredTensors tensors_;
};

void ExpectAll(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TEST(QuantizedTensors, ScalesOfAWrongShapeAreRefusedNamingTensorAndField) {
  Checkpoint fp8;
  fp8.Add("a.weight", DType::kF8E4M3, {40, 96}).Add("a.weight_scale_inv", DType::kF32, {2, 3});
  ExpectAll(fp8.Fault({{"quant_method", "fp8"}}),
            {"'a.weight_scale_inv'", "[2, 3]", "[40, 96]", "'weight_block_size'", "[1, 1]"});

  Checkpoint awq;
  awq.Add("a.qweight", DType::kI32, {64, 2}).Add("a.scales", DType::kF16, {1, 16});
  awq.Add("a.qzeros", DType::kI32, {2, 2});
  ExpectAll(awq.Fault({{"quant_method", "awq"}, {"group_size", 32}}),
            {"'a.scales'", "[1, 16]", "group_size", "[2, 16]"});
  awq.Add("a.scales", DType::kI32, {2, 16});
  ExpectAll(awq.Fault({{"quant_method", "awq"}, {"group_size", 32}}), {"'a.scales'", "i32"});

  Checkpoint mxfp4;
  mxfp4.Add("e.w_blocks", DType::kU8, {2, 4, 3, 16}).Add("e.w_scales", DType::kU8, {2, 4, 2});
  ExpectAll(mxfp4.Fault({{"quant_method", "mxfp4"}}), {"'e.w_scales'", "[2, 4, 2]", "[2, 4, 3]"});
}

TEST(QuantizedTensors, MissingPartsAreRefusedNamingTensor) {
  Checkpoint fp8;
  fp8.Add("a.weight", DType::kF8E4M3, {4, 4});
  ExpectAll(fp8.Fault({{"quant_method", "fp8"}}), {"'a.weight_scale'", "missing", "'a.weight'"});

  Checkpoint gptq;
  gptq.Add("a.qweight", DType::kI32, {4, 8}).Add("a.scales", DType::kF16, {1, 8});
  ExpectAll(gptq.Fault({{"quant_method", "gptq"}}), {"'a.qzeros'", "missing"});
  gptq.Add("a.qzeros", DType::kI32, {1, 1}).Add("a.g_idx", DType::kI32, {31});
  ExpectAll(gptq.Fault({{"quant_method", "gptq"}}), {"'a.g_idx'", "[31]", "[32]"});

  Checkpoint nf4;
  nf4.Add("a.weight", DType::kU8, {8, 1}).Add("a.weight.absmax", DType::kF32, {1});
  ExpectAll(nf4.Fault({{"quant_method", "bitsandbytes"}}), {"'a.weight'", "quant_state"});
}

TEST(QuantizedTensors, GroupsThatContradictTheGroupSizeAreRefusedNamingTensorAndField) {
  Checkpoint awq;
  awq.Add("a.qweight", DType::kI32, {64, 2}).Add("a.scales", DType::kF16, {2, 16});
  awq.Add("a.qzeros", DType::kI32, {1, 2});
  ExpectAll(awq.Fault({{"quant_method", "awq"}, {"group_size", 32}}),
            {"'a.qzeros'", "[1, 2]", "group_size", "[2, 2]"});

  Checkpoint gptq;
  gptq.Add("a.qweight", DType::kI32, {8, 16}).Add("a.scales", DType::kF16, {2, 16});
  gptq.Add("a.qzeros", DType::kI32, {2, 2});
  ExpectAll(gptq.Fault({{"quant_method", "gptq"}, {"group_size", 64}}),
            {"'a.scales'", "[2, 16]", "group_size", "[1, 16]"});
  Checkpoint odd;
  odd.Add("a.qweight", DType::kI32, {8, 12});
  ExpectAll(odd.Fault({{"quant_method", "gptq"}}), {"'a.qweight'", "[8, 12]", "multiple of 8"});
}

TEST(QuantizedTensors, AnActOrderIndexWithoutAGroupIsRefusedNamingTensorAndGroup) {
  for (const int32_t group : {2, -1, std::numeric_limits<int32_t>::max()}) {
    std::vector<int32_t> groups(64, 1);
    groups[40] = group;
    Checkpoint gptq;
    gptq.Add("a.qweight", DType::kI32, {8, 16}).Add("a.scales", DType::kF16, {2, 16});
    gptq.Add("a.qzeros", DType::kI32, {2, 2});
    gptq.Add("a.g_idx", DType::kI32, {64}, std::as_bytes(std::span(groups)));
    ExpectAll(gptq.Fault({{"quant_method", "gptq"}, {"group_size", 32}}),
              {"'a.g_idx'", "group " + std::to_string(group), "there are 2", "group_size"});
  }
}

TEST(QuantizedTensors, AnUnpackedShapeThatContradictsTheWordsIsRefused) {
  const Json config = Json::parse(R"({"quant_method": "compressed-tensors",
    "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}})");
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8, 65}, {9, 64}, {-8, 64}, {int64_t{1} << 40, 64}}) {
    Checkpoint checkpoint;
    checkpoint.Add("a.weight_packed", DType::kI32, {8, 8});
    checkpoint.Add("a.weight_scale", DType::kF16, {8, 2});
    checkpoint.Add("a.weight_shape", DType::kI64, {2}, std::as_bytes(std::span(shape)));
    ExpectAll(checkpoint.Fault(config), {"a.weight_", "tensor"});
  }
}

// 2^63 - 1 rows of nothing: no size may wrap.
TEST(QuantizedTensors, AxesOfHugeSizesWithoutNumbersAreRefusedOrEmpty) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  Checkpoint fp8;
  fp8.Add("a.weight", DType::kF8E4M3, {kHuge, 0}).Add("a.weight_scale_inv", DType::kF32, {7, 7});
  ExpectAll(fp8.Fault({{"quant_method", "fp8"}}), {"'a.weight_scale_inv'"});
  Checkpoint awq;
  awq.Add("a.qweight", DType::kI32, {kHuge, 0}).Add("a.scales", DType::kF16, {1, 0});
  ExpectAll(awq.Fault({{"quant_method", "awq"}}), {"'a.scales'"});
  Checkpoint gptq;
  gptq.Add("a.qweight", DType::kI32, {kHuge, 0});
  ExpectAll(gptq.Fault({{"quant_method", "gptq"}}), {"inputs of a quantised tensor"});
}

// A name that continues another weight's belongs to that one.
TEST(QuantizedTensors, AWeightBelowAnotherNibbleWeightIsAPartOfIt) {
  const std::string state = R"({"blocksize": 64, "shape": [8, 8]})";
  Checkpoint nf4;
  nf4.Add("a.weight", DType::kU8, {32, 1}).Add("a.weight.absmax", DType::kF32, {1});
  nf4.Add("a.weight.quant_map", DType::kF32, {16}).Add("a.weight.b.weight", DType::kU8, {4});
  nf4.Add("a.weight.quant_state.bitsandbytes__nf4", DType::kU8,
          {static_cast<int64_t>(state.size())}, std::as_bytes(std::span(state)));
  EXPECT_EQ(nf4.Fault({{"quant_method", "bitsandbytes"}}), "no error");
}

TEST(QuantizedTensors, AStackOfBlocksDecodesToItsLastNumber) {
  const ModelDir dir = ModelDir::Open(tests::SourceDir() / "tests/golden/quantized/mxfp4");
  const StoredTensor& stack = *dir.FindStored("e.up_blocks");
  ASSERT_EQ(stack.view.shape.size(), 3u);
  StoredTensor matrix = stack;
  matrix.view.shape = {stack.view.shape[0] * stack.view.shape[1], stack.view.shape[2]};
  EXPECT_EQ(DecodeTensor(stack), DecodeTensor(matrix));
}

TEST(QuantizedTensors, OtherMethodsAndSettingsAreRefusedByName) {
  Checkpoint none;
  const auto refused = [&](const Json& config) {
    return none.Fault(config, ErrorCode::kUnsupported);
  };
  ExpectAll(refused({{"quant_method", "hqq"}}), {"quant_method", "'hqq'", "gptq"});
  ExpectAll(refused({{"quant_method", "awq"}, {"version", "gemv"}}), {"version", "'gemv'"});
  ExpectAll(refused({{"quant_method", "gptq"}, {"bits", 3}}), {"'bits'", "3"});
  ExpectAll(refused({{"quant_method", "gptq"}, {"checkpoint_format", "marlin"}}), {"'marlin'"});
  ExpectAll(none.Fault({{"quant_method", "gptq"}, {"group_size", 0}}), {"'group_size'"});
  ExpectAll(none.Fault({{"quant_method", "fp8"}, {"weight_block_size", {128}}}),
            {"'weight_block_size'"});
  ExpectAll(none.Fault({{"quant_method", "compressed-tensors"}}), {"'config_groups'"});
}

}  // namespace
}  // namespace tandem::engine
