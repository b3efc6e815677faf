// Models to MaxText checkpoints and back: every number of the fixtures, in both directions.

#include "convert/formats/maxtext/maxtext.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/formats/maxtext/maxtext_numbers.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "convert/orbax/orbax_writer.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/tensor.h"
#include "tests/convert/families.h"
#include "tests/convert/formats/maxtext/maxtext_fixture.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using Json = nlohmann::ordered_json;

fs::path MaxTextGolden(const std::string& name) {
  return tests::SourceDir() / "tests/golden" / name;
}

Array Widened(const Array& array) {
  const std::vector<float> values = Floats(array);
  const auto bytes = std::as_bytes(std::span(values));
  return {DType::kF32, array.shape, {bytes.begin(), bytes.end()}};
}

// MaxText's converter joins paths of the tree with dashes: params-decoder-… is
// params.params.decoder.…
Arrays GoldenLeaves(const std::string& file) {
  const auto golden =
      engine::SafetensorsFile::Open(MaxTextGolden("maxtext") / (file + ".safetensors"));
  Arrays arrays;
  for (const std::string& name : golden.names()) {
    std::string path = "params." + name;
    std::replace(path.begin(), path.end(), '-', '.');
    const engine::ConstTensorView& view = *golden.Find(name);
    arrays[path] = ArrayOf(view, {view.data, view.bytes()});
  }
  return arrays;
}

struct Pair {
  const char* model;
  const char* file;
  const char* layout;
  const char* maxtext_model;
};
constexpr std::array kPairs = {
    Pair{"gemma2-tiny", "gemma2-tiny.maxtext-gemma2-2b.scanned", "scanned", ""},
    Pair{"gemma2-tiny", "gemma2-tiny.maxtext-gemma2-2b.unscanned", "unscanned", ""},
    Pair{"llama3-tiny-rope-scaling", "llama3-tiny-rope-scaling.maxtext-llama3-8b.scanned",
         "scanned", "llama3-8b"},
    Pair{"llama3-tiny-rope-scaling", "llama3-tiny-rope-scaling.maxtext-llama3.1-8b.scanned",
         "scanned", "llama3.1-8b"},
    Pair{"llama3-tiny-rope-scaling", "llama3-tiny-rope-scaling.maxtext-llama3.1-8b.unscanned",
         "unscanned", ""},
    Pair{"qwen3-tiny", "qwen3-tiny.maxtext-qwen3-8b.scanned", "scanned", ""},
    Pair{"qwen3-tiny", "qwen3-tiny.maxtext-qwen3-8b.unscanned", "unscanned", ""}};

TEST_F(MaxTextTest, WhatIsWrittenIsWhatMaxTextsConverterWrites) {
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(pair.file);
    fs::remove_all(out_);
    ConvertSpec spec = Spec(MaxTextGolden(pair.model), "maxtext", out_);
    spec.dtype = "f32";
    spec.layout = pair.layout;
    spec.maxtext.model = pair.maxtext_model;

    const ConvertResult result = Run(spec);

    EXPECT_EQ(result.format, "maxtext");
    ExpectSame(LeavesOf(out_), GoldenLeaves(pair.file));
    const Json step = Json::parse(engine::ReadWholeFile(out_ / "0/_CHECKPOINT_METADATA", 1 << 20));
    EXPECT_EQ(step["custom_metadata"]["scan_layers"], std::string(pair.layout) == "scanned");
    const auto checkpoint = OrbaxCheckpoint::Open(out_);
    for (const auto& leaf : checkpoint.leaves()) {
      if (leaf.name() == "step") {
        EXPECT_EQ(leaf.value_type, "scalar");
      }
      if (leaf.name() == "opt_state") {
        EXPECT_EQ(leaf.value_type, "Dict");
      }
    }
  }
}

TEST_F(MaxTextTest, WhatMaxTextsConverterWritesIsReadAsTheModelItWasMadeOf) {
  for (const Pair& pair : kPairs) {
    for (const std::string dtype : {"f32", ""}) {
      SCOPED_TRACE(std::string(pair.file) + " " + dtype);
      WriteCheckpoint(GoldenLeaves(pair.file), checkpoint_);
      fs::remove_all(out_);
      ConvertSpec spec = Spec(checkpoint_, "hf", out_);
      spec.base = MaxTextGolden(pair.model);
      spec.dtype = dtype;
      spec.maxtext.model = pair.maxtext_model;

      Run(spec);

      Arrays wanted = TensorsOf(MaxTextGolden(pair.model));
      if (dtype == "f32") {
        for (auto& [name, array] : wanted) array = Widened(array);
      }
      ExpectSame(TensorsOf(out_), wanted);
    }
  }
}

// Every golden model of these families returns byte for byte from a checkpoint, in f32 and bf16,
// without its base. Layouts alternate: they do not affect numbers.
TEST_F(MaxTextTest, EveryModelComesBackByteForByte) {
  struct Numbers {
    const char* dtype;
    bool all_bf16;
  };
  std::vector<const char*> models = {"gemma2-tiny", "gemma3-text-tiny", "llama3-tiny-rope-scaling"};
  if (!kIsSanitized) {
    models.insert(models.end(),
                  {"gemma2-tiny-query-scalar", "llama2-tiny-two-shards", "qwen3-tiny"});
  }
  int turn = 0;
  for (const std::string model : models) {
    for (const auto& [dtype, all_bf16] :
         {Numbers{"f32", false}, {"", false}, {"", true}, {"bf16", false}, {"bf16", true}}) {
      const std::string layout = ++turn % 2 == 0 ? "scanned" : "unscanned";
      SCOPED_TRACE(model + " " + layout + " " + dtype + (all_bf16 ? " all" : ""));
      fs::remove_all(checkpoint_);
      const Arrays original = TensorsOf(MaxTextGolden(model));
      const DType was = original.begin()->second.dtype;
      ConvertSpec spec = Spec(MaxTextGolden(model), "maxtext", checkpoint_);
      spec.dtype = dtype;
      spec.layout = layout;
      spec.maxtext.all_bf16 = all_bf16;
      Run(spec);
      if (spec.dtype == "bf16" && was == DType::kF32) continue;  // compared while it was written
      std::optional<DType> told;
      if (spec.dtype == "f32" && was == DType::kBF16) told = DType::kBF16;
      const auto back = OpenMaxText(checkpoint_, {}, told, "");
      Arrays tensors;
      for (int64_t part = 0; part < back->parts(); ++part) {
        back->ReadPart(part, [&](const auto& tensor, const auto& bytes) {
          tensors[tensor.name] = ArrayOf(tensor.view, bytes);
        });
      }
      ExpectSame(tensors, original);
      EXPECT_EQ(back->ReadText("generation_config.json"),
                engine::ModelDir::Open(MaxTextGolden(model)).ReadText("generation_config.json"));
    }
  }
}

// Reading in pieces gives the whole tensor, for any number of threads and any chunk size.
TEST_F(MaxTextTest, PiecesAreTheWholeOnAnyNumberOfThreads) {
  for (const char* model : {"gemma3-text-tiny", "llama3-tiny-rope-scaling", "qwen3-tiny"}) {
    for (const int64_t chunk_bytes : {int64_t{256}, int64_t{3000}, int64_t{1} << 30}) {
      SCOPED_TRACE(std::string(model) + " " + std::to_string(chunk_bytes));
      ConvertSpec spec = Spec(MaxTextGolden(model), "maxtext", out_);
      fs::remove_all(out_);
      spec.dtype = "f32";
      Run(spec);
      WriteCheckpoint(LeavesOf(out_), checkpoint_, {.max_chunk_bytes = chunk_bytes});
      const auto source = OpenMaxText(checkpoint_, MaxTextGolden(model), std::nullopt, "");
      Arrays wanted;
      for (int64_t part = 0; part < source->parts(); ++part) {
        source->ReadPart(part, [&](const auto& tensor, const auto& bytes) {
          wanted[tensor.name] = ArrayOf(tensor.view, bytes);
        });
      }
      for (const int n_threads : {1, 2, 5}) {
        ThreadPool pool(n_threads);
        const ParallelFor parallel_for = [&](int64_t n, const std::function<void(int64_t)>& task) {
          pool.ParallelFor(n, [&](int64_t i, int) { task(i); });
          return true;
        };
        std::mutex mutex;  // guards read
        Arrays read;
        const auto take = [&](const engine::NamedTensor& tensor, int64_t offset, auto piece) {
          const std::lock_guard lock(mutex);
          Array& array = read[tensor.name];
          array.dtype = tensor.view.dtype;
          array.shape = tensor.view.shape;
          array.bytes.resize(tensor.view.bytes());
          std::copy(piece.begin(), piece.end(), array.bytes.begin() + offset);
        };
        for (int64_t part = 0; part < source->parts(); ++part) {
          source->ReadPieces(part, parallel_for, take);
        }
        ExpectSame(read, wanted);
      }
    }
  }
}

TEST_F(MaxTextTest, ADamagedChunkIsNamedAndNothingIsKept) {
  ConvertSpec spec = Spec(MaxTextGolden("llama3-tiny-rope-scaling"), "maxtext", out_);
  Run(spec);
  OrbaxStorage files{.ocdbt = false, .max_chunk_bytes = 512};
  WriteCheckpoint(LeavesOf(out_), checkpoint_, files);
  fs::remove_all(out_);
  const fs::path table = checkpoint_ / "5/items/params.params.token_embedder.embedding/c";
  const auto n_chunks = std::distance(fs::directory_iterator(table), fs::directory_iterator());
  ASSERT_GT(n_chunks, 4);
  for (const auto chunk : {n_chunks / 2, n_chunks - 1}) {
    const fs::path file = table / std::to_string(chunk) / "0";
    std::string bytes = engine::ReadWholeFile(file, 1 << 20);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    std::ofstream(file, std::ios::binary) << bytes;
  }
  spec = Spec(checkpoint_, "hf", out_);
  spec.base = MaxTextGolden("llama3-tiny-rope-scaling");
  for (int round = 0; round < 5; ++round) {
    ExpectFault(spec, "embedding/c/" + std::to_string(n_chunks / 2) + "/0'");
    EXPECT_FALSE(fs::exists(out_));
  }
}

// A record with a mix of dtypes that our writers never produce.
TEST_F(MaxTextTest, LayersMayBeOfDifferentTypes) {
  ConvertSpec spec = Spec(MaxTextGolden("qwen3-tiny"), "maxtext", checkpoint_);
  spec.dtype = "f32";
  Run(spec);
  const std::string first = "model.layers.0.mlp.up_proj.weight";
  const fs::path file = checkpoint_ / kMaxTextRecordFile;
  Json record = Json::parse(engine::ReadWholeFile(file, 1 << 20));
  for (auto& [dtype, names] : record["dtypes"].items()) {
    names.erase(std::remove(names.begin(), names.end(), Json(first)), names.end());
  }
  record["dtypes"]["bf16"].push_back(first);
  std::ofstream(file) << record.dump();

  const auto source = OpenMaxText(checkpoint_, {}, std::nullopt, "");
  size_t n_bytes = 0;
  for (int64_t part = 0; part < source->parts(); ++part) {
    source->ReadPart(part, [&](const engine::NamedTensor& tensor, const auto& bytes) {
      EXPECT_EQ(bytes.size(), tensor.view.bytes());
      EXPECT_EQ(tensor.view.dtype, tensor.name == first ? DType::kBF16 : DType::kF32);
      n_bytes += bytes.size();
    });
  }
  EXPECT_EQ(static_cast<int64_t>(n_bytes), source->bytes());
}

TEST_F(MaxTextTest, EveryVariantOfStorageIsWritten) {
  for (const bool ocdbt : {false, true}) {
    for (const int zarr : {2, 3}) {
      fs::remove_all(out_);
      ConvertSpec spec = Spec(MaxTextGolden("qwen3-tiny"), "maxtext", out_);
      spec.maxtext.ocdbt = ocdbt;
      spec.maxtext.zarr = zarr;
      Run(spec);
      EXPECT_EQ(fs::exists(out_ / "0/items/manifest.ocdbt"), ocdbt);
      const auto checkpoint = OrbaxCheckpoint::Open(out_);
      EXPECT_EQ(checkpoint.leaves()[1].array->version, zarr);
    }
  }
}

float Bf16(double value) {
  return engine::Bf16ToFloat(engine::FloatToBf16(static_cast<float>(value)));
}

// MaxText has no fixture for it: names and numbers follow the rules of its converter.
TEST_F(MaxTextTest, Gemma3HasBlocksOfSixAndTheRestApart) {
  ConvertSpec spec = Spec(MaxTextGolden("gemma3-text-tiny"), "maxtext", out_);
  spec.dtype = "f32";
  Run(spec);

  const Arrays leaves = LeavesOf(out_);
  const Arrays tensors = TensorsOf(MaxTextGolden("gemma3-text-tiny"));
  const std::vector<float> embedding = Floats(leaves.at("params.params.token_embedder.embedding"));
  const std::vector<float> theirs = Floats(tensors.at("model.embed_tokens.weight"));
  ASSERT_EQ(embedding.size(), theirs.size());
  for (size_t i = 0; i < theirs.size(); ++i) {
    ASSERT_EQ(embedding[i], theirs[i] * Bf16(std::sqrt(32.0)));
  }
  // Seven layers: one scanned block of six, and one remaining layer.
  for (int layer = 0; layer < 7; ++layer) {
    const std::string below = layer < 6 ? "layers.layers_" + std::to_string(layer)
                                        : std::string("layers_remainder.layers_0");
    const std::string at = "params.params.decoder." + below + ".";
    const std::string from = "model.layers." + std::to_string(layer) + ".";
    SCOPED_TRACE(at);
    ASSERT_TRUE(leaves.contains(at + "self_attention.query.kernel"));
    using Shape = std::vector<int64_t>;
    EXPECT_EQ(leaves.at(at + "self_attention.query.kernel").shape,
              layer < 6 ? Shape({32, 1, 4, 16}) : Shape({32, 4, 16}));
    const std::vector<float> norm = Floats(leaves.at(at + "self_attention.key_norm.scale"));
    const std::vector<float> hf_norm = Floats(tensors.at(from + "self_attn.k_norm.weight"));
    for (size_t i = 0; i < norm.size(); ++i) EXPECT_EQ(norm[i], hf_norm[i] + 1);
    const std::vector<float> out = Floats(leaves.at(at + "self_attention.out.kernel"));
    const std::vector<float> o_proj = Floats(tensors.at(from + "self_attn.o_proj.weight"));
    for (size_t in = 0; in < 64; ++in) {
      for (size_t to = 0; to < 32; ++to) ASSERT_EQ(out[in * 32 + to], o_proj[to * 64 + in]);
    }
  }
  EXPECT_FALSE(leaves.contains("params.params.decoder.layers_remainder.layers_1.mlp.wo.kernel"));
}

// Trees of other programs: levels around the names do not matter.
TEST_F(MaxTextTest, TreesOfNnxAndOfTunixAreRead) {
  const Arrays golden = GoldenLeaves("qwen3-tiny.maxtext-qwen3-8b.unscanned");
  struct Form {
    const char* before;
    const char* after;
    bool has_list;  // layers are a list
  };
  for (const Form& form : {Form{"", ".value", false}, Form{"base.", ".value", false},
                           Form{"params.", "", false}, Form{"model.", ".value", true}}) {
    SCOPED_TRACE(std::string(form.before) + "…" + form.after);
    Arrays leaves;
    for (const auto& [name, array] : golden) {
      std::string inner = name.substr(std::string("params.params.").size());
      const size_t at = inner.find("layers_");
      if (form.has_list && at != std::string::npos) inner[at + 6] = '.';
      leaves[form.before + inner + form.after] = array;
      leaves["opt_state.0.mu." + inner] = array;
      leaves["optimizer_state.1.nu." + inner + ".value"] = array;
    }
    leaves["decoder.dropout.rngs.default.key.value"] = golden.begin()->second;
    WriteCheckpoint(leaves, checkpoint_);
    fs::rename(checkpoint_ / "5/items", checkpoint_ / "5/model_params");
    fs::remove_all(out_);
    ConvertSpec spec = Spec(checkpoint_, "hf", out_);
    spec.base = MaxTextGolden("qwen3-tiny");
    Run(spec);
    ExpectSame(TensorsOf(out_), TensorsOf(MaxTextGolden("qwen3-tiny")));
  }
}

TEST_F(MaxTextTest, ParametersThatDoNotFitAreNamed) {
  const Arrays golden = GoldenLeaves("qwen3-tiny.maxtext-qwen3-8b.scanned");
  const std::string wo = "params.params.decoder.layers.mlp.wo.kernel";
  ConvertSpec spec = Spec(checkpoint_, "hf", out_);

  WriteCheckpoint(golden, checkpoint_);
  ExpectFault(spec, "set base to the Hugging Face model directory");
  spec.base = MaxTextGolden("qwen3-tiny");

  Arrays leaves = golden;
  leaves.erase(wo);
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec,
              "'decoder.layers.mlp.wo.kernel' (model.layers.0.mlp.down_proj.weight) is missing");

  leaves = golden;
  leaves["params.params.decoder.layers.mlp.w0.kernel"] = golden.at(wo);
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec, "nearest are 'decoder.layers.mlp.wo.kernel'");

  leaves = golden;
  leaves.at(wo).shape = {36, 4, 48};
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec, "has the shape [36, 4, 48], but config.json requires [72, 2, 48]");

  leaves = golden;
  leaves["params.params.decoder.layers.mlp.wo.kernel_lora_a"] = golden.at(wo);
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec, "MaxText adapters are not supported");

  leaves = golden;
  leaves["params.vision_encoder.patch"] = golden.at(wo);
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec, "is not a MaxText parameter");

  leaves = golden;
  leaves.at(wo).dtype = DType::kI32;
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec, "has type int32");

  leaves = golden;
  leaves["base.decoder.layers.mlp.wo.kernel"] = golden.at(wo);
  WriteCheckpoint(leaves, checkpoint_);
  ExpectFault(spec, "twice");
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(MaxTextTest, ModelsThatItsTreeHasNoPlaceForAreRefused) {
  ExpectFault(Spec(MaxTextGolden("gpt2-tiny"), "maxtext", out_), "family 'gpt2' is not converted");
  ExpectFault(Spec(MaxTextGolden("phi-tiny"), "maxtext", out_), "family 'phi' is not converted");
  ConvertSpec spec = Spec(MaxTextGolden("qwen3-tiny"), "maxtext", out_);
  spec.maxtext.model = "mixtral-8x7b";
  ExpectFault(spec, "has one form only");
  spec.maxtext = {};
  spec.dtype = "f16";
  ExpectFault(spec, "dtype 'f16' is not supported by maxtext; supported are f32, bf16");
}

// A correction applies only to the number it was made for: numbers that training changed stay.
TEST_F(MaxTextTest, CorrectionsAreForTheNumbersTheyWereMadeFor) {
  const MaxTextArithmetic plus_one{.added = 1};
  MaxTextLeaf leaf;
  leaf.name = "scale";
  leaf.tensors = {"norm"};
  leaf.shape = leaf.tensor_shape = {4};
  leaf.arithmetic = plus_one;
  const std::array<float, 4> values = {0.1f, 1e-9f, -0.0f, -3e-38f};
  const auto tensor = std::as_bytes(std::span(values));

  std::array<float, 4> theirs{};
  ASSERT_TRUE(TensorToLeaf(leaf, 0, {0, 4}, tensor, DType::kF32, DType::kF32,
                           std::as_writable_bytes(std::span(theirs))));
  const Loss loss = LossOf(plus_one, DType::kF32, tensor, DType::kF32);
  EXPECT_EQ(loss.changed, 4);
  const auto steps = CorrectionSteps(plus_one, DType::kF32, tensor, DType::kF32);
  const Corrections corrections{DType::kF32, DType::kI32, std::as_bytes(std::span(steps))};

  std::array<float, 4> back{};
  const auto read = [&] {
    ASSERT_TRUE(LeafToTensor(leaf, 0, {0, 4}, std::as_bytes(std::span(theirs)), DType::kF32,
                             DType::kF32, corrections, std::as_writable_bytes(std::span(back))));
  };
  read();
  EXPECT_EQ(std::memcmp(back.data(), values.data(), sizeof(values)), 0);
  theirs[1] = 1.25f;
  theirs[3] = 0.5f;
  read();
  EXPECT_EQ(back[0], values[0]);
  EXPECT_EQ(back[1], 0.25f);
  EXPECT_EQ(back[3], -0.5f);
}

// A large tensor is written into its parameter a few rows at a time; only those rows are in memory.
TEST_F(MaxTextTest, RowsOfATensorGoWhereTheWholeTensorPutsThem) {
  MaxTextLeaf turned;
  turned.tensors = {"q"};
  turned.tensor_shape = {32, 24};
  turned.shape = {24, 4, 8};
  turned.is_transposed = true;
  turned.rotated_head_dim = 8;
  MaxTextLeaf table;  // with more rows than the tensor
  table.tensors = {"embedding"};
  table.tensor_shape = {32, 24};
  table.shape = {40, 24};
  table.has_vocabulary = true;
  std::vector<float> values(32 * 24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 7;
  const auto tensor = std::as_bytes(std::span(values));
  const size_t row_bytes = tensor.size() / 32;

  for (const MaxTextLeaf& like : {turned, table}) {
    for (const MaxTextArithmetic& arithmetic :
         {MaxTextArithmetic{}, MaxTextArithmetic{.factor = 3}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        MaxTextLeaf leaf = like;
        leaf.arithmetic = arithmetic;
        const int64_t n_rows = leaf.has_vocabulary ? 40 : 32;
        const size_t bytes = static_cast<size_t>(n_rows * 24) * engine::DTypeBytes(dtype);
        std::vector<std::byte> whole(bytes), parts(bytes, std::byte{0xff});
        ASSERT_TRUE(TensorToLeaf(leaf, 0, {0, n_rows}, tensor, DType::kF32, dtype, whole));
        for (int64_t first = 0; first < n_rows; first += 16) {
          const RowRange rows{first, std::min(n_rows, first + 16)};
          const int64_t there = std::clamp<int64_t>(32 - first, 0, 16);
          const auto part =
              tensor.subspan(static_cast<size_t>(32 - std::max<int64_t>(32 - first, 0)) * row_bytes,
                             static_cast<size_t>(there) * row_bytes);
          ASSERT_TRUE(TensorToLeaf(leaf, 0, rows, part, DType::kF32, dtype, parts));
        }
        EXPECT_EQ(whole, parts);
      }
    }
  }
}

TEST_F(MaxTextTest, RowsThatASourceReadsAreThoseOfTheTensor) {
  for (const std::optional<DType> dtype : {std::optional<DType>(), std::optional(DType::kF32)}) {
    const auto source = OpenModelFiles(MaxTextGolden("gemma2-tiny"), dtype);
    int tensors = 0;
    for (int64_t i = 0; i < source->parts(); ++i) {
      const auto& shape = source->tensors()[static_cast<size_t>(i)].view.shape;
      std::vector<std::byte> all, some;
      const ModelSource::Bytes whole = source->Read(i, &all);
      const size_t row_bytes = whole.size() / static_cast<size_t>(shape[0]);
      const auto rows = source->ReadRows(i, 1, shape[0] - 2, &some);
      ASSERT_TRUE(rows.has_value());
      EXPECT_TRUE(std::ranges::equal(*rows, whole.subspan(row_bytes, rows->size())));
      EXPECT_EQ(rows->size(), whole.size() - 2 * row_bytes);
      ++tensors;
    }
    EXPECT_GT(tensors, 10);
  }
}

// Every bf16 number: its f32 product with a root is unique and converts back.
TEST_F(MaxTextTest, ProductsOfNumbersOf16BitsComeBackFromF32) {
  for (const float factor : {std::sqrt(2304.0f), std::sqrt(3584.0f), 1 / std::sqrt(128.0f),
                             static_cast<float>(1 / std::sqrt(12.0)), Bf16(std::sqrt(1152.0))}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = engine::Bf16ToFloat(static_cast<uint16_t>(bits));
      const float theirs = value * factor;
      // Subnormal products have fewer bits than both factors.
      if (!std::isfinite(theirs) || std::fabs(value) < 1e-30f) continue;
      const float back = FromMaxText({.factor = factor}, DType::kF32, theirs);
      ASSERT_EQ(std::bit_cast<uint32_t>(back), std::bit_cast<uint32_t>(value)) << value;
    }
  }
}

TEST_F(MaxTextTest, WhatBf16WouldDamageIsKeptInF32UnlessToldOtherwise) {
  ConvertSpec spec = Spec(MaxTextGolden("gemma2-tiny"), "maxtext", out_);
  Run(spec);
  const auto dtype_of = [&](const char* name) {
    return LeavesOf(out_).at("params.params." + std::string(name)).dtype;
  };
  EXPECT_EQ(dtype_of("decoder.layers.mlp_local.wo.kernel"), DType::kBF16);
  EXPECT_EQ(dtype_of("decoder.layers.self_attention_local.query.kernel"), DType::kBF16);  // 1/4
  EXPECT_EQ(dtype_of("decoder.decoder_norm.scale"), DType::kF32);
  EXPECT_EQ(dtype_of("token_embedder.embedding"), DType::kF32);
  const Json record = Json::parse(engine::ReadWholeFile(out_ / kMaxTextRecordFile, 1 << 20));
  EXPECT_GT(record["kept_f32"].size(), 4u);
  for (const Json& kept : record["kept_f32"]) {
    EXPECT_GT(kept["changed_by_bf16"], 0);
    EXPECT_GT(kept["max_abs_difference"], 0.0);
  }
  EXPECT_TRUE(record["corrected"].empty());
  EXPECT_FALSE(fs::exists(out_ / "exact"));

  fs::remove_all(out_);
  spec.maxtext.all_bf16 = true;
  Run(spec);
  EXPECT_EQ(dtype_of("token_embedder.embedding"), DType::kBF16);
  EXPECT_EQ(dtype_of("decoder.decoder_norm.scale"), DType::kBF16);
  EXPECT_TRUE(fs::exists(out_ / "exact/items/manifest.ocdbt"));
}

TEST_F(MaxTextTest, ScannedBecomesUnscannedAndBack) {
  const fs::path unscanned = dir_.path() / "unscanned";
  ConvertSpec spec = Spec(MaxTextGolden("gemma2-tiny"), "maxtext", checkpoint_);
  Run(spec);
  spec = Spec(checkpoint_, "maxtext", unscanned);
  spec.layout = "unscanned";
  Run(spec);
  spec = Spec(unscanned, "maxtext", out_);
  spec.layout = "scanned";
  Run(spec);
  EXPECT_TRUE(
      LeavesOf(unscanned).contains("params.params.decoder.layers_1.mlp_global.wi_0.kernel"));
  ExpectSame(LeavesOf(out_), LeavesOf(checkpoint_));
}

}  // namespace
}  // namespace tandem::convert
