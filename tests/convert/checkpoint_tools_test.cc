// The parts of `tandem checkpoint`: content hash, diff, verify and reshard.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "convert/formats/params_spec.h"
#include "convert/sources/checkpoint_summary.h"
#include "convert/sources/tensor_source_open.h"
#include "convert/tensors/tensor_diff.h"
#include "convert/tensors/tensor_hash.h"
#include "convert/verify/verify_tensors.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "engine/io/sha256.h"
#include "engine/kernels/kernels.h"
#include "tests/support/adapters.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using engine::DType;
using Kind = TensorDifference::Kind;

std::string HashOf(const fs::path& path) {
  return convert::HashOf(HashTensors(*OpenTensors(path).source));
}
TensorDiff Diff(const fs::path& a, const fs::path& b, const fs::path& base = {}) {
  const auto [first, second] = OpenToCompare(a, b, base);
  return DiffTensors(*first.source, *second.source);
}
VerifyReport Verify(const fs::path& path, bool quick = false) {
  return VerifyTensors(path, {.quick = quick, .advance = {}});
}

class CheckpointTools : public testing::Test {
 protected:
  fs::path Golden(const std::string& name) const { return tests::LoadGolden(name).dir; }
  ConvertResult Run(const ConvertSpec& spec) {
    ThreadPool pool(2);
    engine::OpsContext ops(engine::Kernels(), pool);
    return Convert(spec, {}, ops);
  }
  ConvertResult Reshard(const fs::path& source, const fs::path& target, int64_t shard_bytes) {
    return Run(ReshardSpec(source, target, shard_bytes));
  }
  fs::path Copy(const fs::path& source, const std::string& name, const std::string& dtype = "") {
    ConvertSpec spec;
    spec.source = source;
    spec.dtype = dtype;
    spec.target = dir_.path() / name;
    spec.certificate = false;
    Run(spec);
    return spec.target;
  }
  // Writes a file of f32 tensors, one row each.
  fs::path File(const std::string& name,
                const std::vector<std::pair<std::string, std::vector<float>>>& tensors) {
    std::vector<engine::NamedTensor> named;
    for (const auto& [tensor, values] : tensors) {
      named.push_back({tensor,
                       {reinterpret_cast<const std::byte*>(values.data()),
                        DType::kF32,
                        {static_cast<int64_t>(values.size())}}});
    }
    const fs::path path = dir_.path() / (name + ".safetensors");
    engine::WriteSafetensors(path, named, {});
    return path;
  }
  static void FlipByte(const fs::path& file, int64_t from_end) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-from_end, std::ios::end);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(-from_end, std::ios::end);
    stream.put(byte);
  }
  fs::path OrbaxCopy() {
    const fs::path fixtures = tests::SourceDir() / "tests/convert/orbax/fixtures";
    for (const auto& entry : fs::directory_iterator(fixtures)) {
      if (!entry.is_directory()) continue;
      fs::copy(entry.path(), dir_.path() / "orbax", fs::copy_options::recursive);
      return dir_.path() / "orbax";
    }
    return {};
  }

  tests::TemporaryDir dir_;
};

TEST_F(CheckpointTools, OneHashForOneContentHoweverItIsStored) {
  const fs::path two_shards = Golden("llama2-tiny-two-shards");
  const fs::path one_file = Copy(two_shards, "one-file");
  Reshard(two_shards, dir_.path() / "many", 20000);
  ASSERT_TRUE(fs::exists(one_file / "model.safetensors"));
  ASSERT_FALSE(fs::exists(dir_.path() / "many" / "model.safetensors"));

  const std::string hash = HashOf(two_shards);

  EXPECT_EQ(hash.size(), 64U);
  EXPECT_EQ(HashOf(one_file), hash);
  EXPECT_EQ(HashOf(one_file / "model.safetensors"), hash);
  EXPECT_EQ(HashOf(dir_.path() / "many"), hash);
  EXPECT_NE(HashOf(Copy(two_shards, "other-type", "f32")), hash);
  FlipByte(one_file / "model.safetensors", 1);
  EXPECT_NE(HashOf(one_file), hash);
}

// The hashed lines are a published format: other programs may compute the hash.
TEST_F(CheckpointTools, TheHashIsThatOfItsLines) {
  const std::vector<float> values = {1, 2};
  const fs::path file = File("two", {{"b\"", values}, {"a", {3}}});
  const auto sha = [](const void* data, size_t bytes) {
    return engine::ToHex(engine::Sha256Of({static_cast<const std::byte*>(data), bytes}));
  };
  const float three = 3;
  const std::string lines = "[\"a\",\"f32\",[1],\"" + sha(&three, 4) +
                            "\"]\n[\"b\\\"\",\"f32\",[2],\"" + sha(values.data(), 8) + "\"]\n";
  EXPECT_EQ(HashOf(file), sha(lines.data(), lines.size()));
}

TEST_F(CheckpointTools, DifferencesAreNamedAndMeasured) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const fs::path a = File("a", {{"gone", {1}},
                                {"longer", {1, 2}},
                                {"near", {3, 4}},
                                {"none", {nan, 1}},
                                {"same", {7, nan}},
                                {"turned", {1, 2}}});
  const fs::path b = File("b", {{"longer", {1, 2, 3}},
                                {"near", {3, 4.5}},
                                {"new", {1}},
                                {"none", {1, 1}},
                                {"same", {7, nan}},
                                {"turned", {-1, 2}}});

  const TensorDiff diff = Diff(a, b);

  EXPECT_EQ(diff.compared, 5);
  ASSERT_EQ(diff.differences.size(), 6U);
  const auto& d = diff.differences;
  EXPECT_EQ(d[0].name, "gone");
  EXPECT_EQ(d[0].kind, Kind::kOnlyInFirst);
  EXPECT_EQ(d[0].first, "f32 [1]");
  EXPECT_EQ(d[1].kind, Kind::kShape);
  EXPECT_EQ(d[1].second, "f32 [3]");
  EXPECT_EQ(d[2].name, "near");
  EXPECT_EQ(d[2].kind, Kind::kValues);
  EXPECT_EQ(d[2].max_abs, 0.5);
  EXPECT_DOUBLE_EQ(d[2].relative_rms, 0.1);
  EXPECT_EQ(d[2].elements, 1);
  EXPECT_EQ(d[3].kind, Kind::kOnlyInSecond);
  EXPECT_TRUE(std::isnan(d[4].max_abs));
  EXPECT_EQ(d[5].max_abs, 2);
  EXPECT_TRUE(Diff(a, a).differences.empty());
}

// Leaves the checkpoint as MaxText writes it, without our records.
fs::path StripRecord(const fs::path& maxtext) {
  for (const char* file : {"config.json", "maxtext.json", "convert.json"})
    fs::remove(maxtext / file);
  return maxtext;
}

TEST_F(CheckpointTools, ACheckpointOfMaxTextIsComparedWithAModelUnderItsNames) {
  const fs::path model = Golden("gemma2-tiny");  // bf16
  const auto maxtext = [&](const std::string& name, const std::string& dtype) {
    ConvertSpec spec;
    spec.source = model;
    spec.format = "maxtext";
    spec.dtype = dtype;
    spec.maxtext.all_bf16 = dtype == "bf16";
    spec.target = dir_.path() / name;
    Run(spec);
    return spec.target;
  };
  const fs::path ours = maxtext("ours", "");
  EXPECT_TRUE(Diff(model, ours).differences.empty());
  EXPECT_TRUE(Diff(ours / "0" / "items", model).differences.empty());
  EXPECT_GT(Diff(model, ours).compared, 40);
  // Two checkpoints of one kind are compared without conversion.
  EXPECT_EQ(Diff(ours, ours).compared, Diff(ours, maxtext("other", "f32")).compared);

  // One changed number appears under its tensor's name, in either order.
  const fs::path changed = Copy(model, "changed", "bf16");
  FlipByte(changed / "model.safetensors", 1);
  const TensorDiff forth = Diff(changed, ours), back = Diff(ours, changed);
  ASSERT_EQ(forth.differences.size(), 1U);
  ASSERT_EQ(back.differences.size(), 1U);
  EXPECT_EQ(forth.differences[0].kind, Kind::kValues);
  EXPECT_EQ(forth.differences[0].elements, 1);
  EXPECT_EQ(forth.differences[0].name, back.differences[0].name);
  EXPECT_EQ(forth.differences[0].max_abs, back.differences[0].max_abs);

  // An f32 checkpoint without a record is not rounded to the dtype of the lent config.
  const fs::path bare = StripRecord(maxtext("bare", "f32"));
  for (const TensorDiff& diff : {Diff(model, bare), Diff(bare, model), Diff(model, bare, model)}) {
    EXPECT_EQ(diff.differences.size(), static_cast<size_t>(diff.compared));
    for (const TensorDifference& each : diff.differences) {
      EXPECT_EQ(each.kind, Kind::kType) << each.name;
      EXPECT_EQ(each.max_abs, 0) << each.name;
    }
  }
  EXPECT_EQ(Diff(model, StripRecord(ours)).compared, forth.compared);
}

TEST_F(CheckpointTools, ABaseIsForACheckpointOfMaxTextBesideAModel) {
  const fs::path model = Golden("gemma2-tiny");
  const auto fault = [&](const fs::path& a, const fs::path& b, const fs::path& base) {
    try {
      Diff(a, b, base);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ConvertSpec spec;
  spec.source = model;
  spec.format = "maxtext";
  spec.target = dir_.path() / "maxtext";
  Run(spec);

  EXPECT_NE(fault(model, model, model).find("base applies only to"), std::string::npos);
  EXPECT_NE(fault(spec.target, spec.target, model).find("base applies only to"), std::string::npos);
  // The config of another model does not fit the checkpoint.
  EXPECT_NE(fault(model, spec.target, Golden("gemma2-tiny-query-scalar")).find("shape"),
            std::string::npos);
  EXPECT_NE(fault(Golden("mistral-tiny"), StripRecord(spec.target), {}), "");
}

TEST_F(CheckpointTools, AnotherTypeIsComparedAsNumbers) {
  const fs::path model = Golden("mistral-tiny");  // f32
  const TensorDiff diff = Diff(model, Copy(model, "bf16", "bf16"));
  ASSERT_EQ(diff.differences.size(), static_cast<size_t>(diff.compared));
  for (const TensorDifference& each : diff.differences) {
    EXPECT_EQ(each.kind, Kind::kType) << each.name;
    EXPECT_LT(each.relative_rms, 1.0 / 256) << each.name;  // bf16 keeps 8 bits, rounded to nearest
  }
  // Converted back to f32, only the dtype changes.
  for (const TensorDifference& each :
       Diff(dir_.path() / "bf16", Copy(dir_.path() / "bf16", "back", "f32")).differences) {
    EXPECT_EQ(each.max_abs, 0) << each.name;
  }
}

TEST_F(CheckpointTools, DamageIsFoundWhereThereIsAHashAndNamed) {
  const fs::path model = Copy(Golden("mistral-tiny"), "model");
  EXPECT_TRUE(Verify(model).faults.empty());
  EXPECT_EQ(Verify(model).held_to, "SHA-256 of convert.json");
  FlipByte(model / "model.safetensors", 100);
  EXPECT_TRUE(Verify(model, /*quick=*/true).faults.empty());
  ASSERT_EQ(Verify(model).faults.size(), 1U);
  EXPECT_NE(Verify(model).faults[0].find("do not match"), std::string::npos);
  EXPECT_NE(Verify(model).faults[0].find("in convert.json"), std::string::npos);
  // Training keeps its record under another name.
  fs::rename(model / "convert.json", model / "training.json");
  EXPECT_EQ(Verify(model).held_to, "SHA-256 of training.json");
  EXPECT_NE(Verify(model).faults[0].find("in training.json"), std::string::npos);
  fs::resize_file(model / "model.safetensors", fs::file_size(model / "model.safetensors") - 1);
  EXPECT_EQ(Verify(model, /*quick=*/true).faults.size(), 1U);
  fs::remove(model / "model.safetensors");
  EXPECT_EQ(Verify(model).faults.size(), 1U);
  // Verify throws for a path without a checkpoint; it does not report damage.
  EXPECT_THROW(Verify(dir_.path() / "nowhere"), Error);
  EXPECT_THROW(Verify(dir_.path()), Error);
}

TEST_F(CheckpointTools, EveryBadFileOfAManifestIsNamed) {
  const fs::path dir = dir_.path() / "step";
  fs::create_directory(dir);
  Json files = Json::array();
  for (const std::string name : {"a", "b", "c", "d"}) {
    std::ofstream(dir / name) << "text of " << name;
    const std::string text = "text of " + name;
    files.push_back({{"name", name},
                     {"bytes", text.size()},
                     {"sha256", engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))))}});
  }
  const auto write = [&](const Json& listed) {
    std::ofstream(dir / "manifest.json")
        << Json{{"format", "tandem-checkpoint"}, {"version", 1}, {"step", 1}, {"files", listed}};
  };
  write(files);
  EXPECT_TRUE(Verify(dir).faults.empty());
  EXPECT_EQ(Verify(dir).files, 4);

  FlipByte(dir / "b", 1);
  fs::remove(dir / "c");
  std::ofstream(dir / "d", std::ios::app) << "more";

  const VerifyReport report = Verify(dir);
  ASSERT_EQ(report.faults.size(), 3U);
  EXPECT_NE(report.faults[0].find("/b: the content"), std::string::npos) << report.faults[0];
  EXPECT_NE(report.faults[1].find("/c: "), std::string::npos);
  EXPECT_NE(report.faults[2].find("/d: the file has"), std::string::npos);

  // quick skips hashes, and b has the right size.
  EXPECT_EQ(Verify(dir, /*quick=*/true).faults.size(), 2U);
  // A name that leaves the directory is a fault; the file is not opened.
  files.push_back({{"name", "../a"}, {"bytes", 1}, {"sha256", std::string(64, '0')}});
  write(files);
  ASSERT_EQ(Verify(dir).faults.size(), 1U);
  EXPECT_NE(Verify(dir).faults[0].find("name"), std::string::npos) << Verify(dir).faults[0];
}

TEST_F(CheckpointTools, EveryChunkOfOrbaxIsDecoded) {
  const fs::path orbax = OrbaxCopy();
  const VerifyReport sound = Verify(orbax);
  EXPECT_TRUE(sound.faults.empty()) << sound.faults[0];
  EXPECT_GT(sound.files, 1);
  EXPECT_GT(sound.bytes, 0);
  EXPECT_EQ(HashOf(orbax), HashOf(orbax));
  EXPECT_TRUE(Diff(orbax, orbax).differences.empty());
  EXPECT_EQ(Json::parse(CheckpointSummary(orbax))["format"].get<std::string>().substr(0, 5),
            "orbax");
  // Cuts array data in half, in every variant of the format.
  for (const auto& entry : fs::recursive_directory_iterator(orbax)) {
    const std::string name = entry.path().filename().string();
    const bool is_text = name.front() == '_' || name.front() == '.' || name == "zarr.json";
    if (!entry.is_regular_file() || is_text || name == "manifest.ocdbt") continue;
    fs::resize_file(entry.path(), entry.file_size() / 2);
  }
  EXPECT_FALSE(Verify(orbax).faults.empty());
}

TEST_F(CheckpointTools, ShardsHoldWhatTheyMayAndAreAModel) {
  const fs::path model = Golden("gemma2-tiny");
  const auto source = OpenTensors(model).source;
  int64_t largest = 0;
  for (const auto& tensor : source->tensors()) {
    largest = std::max(largest, static_cast<int64_t>(tensor.view.bytes()));
  }
  const fs::path target = dir_.path() / "shards";

  const ConvertResult made = Reshard(model, target, largest);

  EXPECT_EQ(made.bytes, source->bytes());
  const Json index =
      Json::parse(engine::ReadWholeFile(target / "model.safetensors.index.json", 1 << 20));
  EXPECT_EQ(index["metadata"]["total_size"], made.bytes);
  EXPECT_EQ(index["weight_map"].size(), source->tensors().size());
  int64_t shards = 0;
  for (const auto& entry : fs::directory_iterator(target)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    EXPECT_LE(OpenTensors(entry.path()).source->bytes(), largest);
  }
  EXPECT_GT(shards, 2);
  EXPECT_TRUE(Diff(model, target).differences.empty());
  EXPECT_TRUE(Verify(target).faults.empty());
  EXPECT_TRUE(fs::exists(target / "config.json"));
  EXPECT_EQ(Json::parse(CheckpointSummary(target))["provenance"]["parents"][0]["name"],
            "gemma2-tiny");
  EXPECT_EQ(Json::parse(CheckpointSummary(target))["provenance"]["certificate"]["max_kl"], 0);
  // The manifest repeats the record.
  const Json manifest = Json::parse(engine::ReadWholeFile(target / "manifest.json", 1 << 20));
  EXPECT_EQ(manifest["certificate"]["equal_tensors"], true) << manifest["certificate"];
  EXPECT_EQ(manifest["hashes"]["content_sha256"], engine::ModelDir::Open(target).ContentHash({}));
  // A limit of one byte per shard gives each tensor a shard of its own.
  Reshard(model, dir_.path() / "each", 1);
  EXPECT_EQ(
      std::count_if(fs::directory_iterator(dir_.path() / "each"), fs::directory_iterator(),
                    [](const auto& entry) { return entry.path().extension() == ".safetensors"; }),
      made.tensors);
  EXPECT_THROW(Reshard(model, target, 1), Error);  // already exists
  EXPECT_THROW(Reshard(model, dir_.path() / "none", 0), Error);
  EXPECT_FALSE(fs::exists(dir_.path() / "none"));
}

TEST_F(CheckpointTools, AManifestThatNamesAFileTwiceIsDamaged) {
  ConvertSpec spec;
  spec.source = Golden("mistral-tiny");
  spec.format = "native";
  spec.target = dir_.path() / "native";
  spec.certificate = false;
  Run(spec);
  ASSERT_TRUE(Verify(spec.target).faults.empty());
  const fs::path file = spec.target / "manifest.json";
  Json manifest = Json::parse(engine::ReadWholeFile(file, 1 << 20));
  manifest["files"].push_back(manifest["files"].front());
  std::ofstream(file) << manifest.dump();

  const std::vector<std::string> faults = Verify(spec.target).faults;

  ASSERT_EQ(faults.size(), 1U);
  EXPECT_NE(faults.front().find("lists 'model"), std::string::npos) << faults.front();
  EXPECT_NE(faults.front().find("twice"), std::string::npos) << faults.front();
  EXPECT_THROW(engine::ModelDir::Open(spec.target), Error);
}

TEST_F(CheckpointTools, AnOrbaxArrayIsVerifiedInMemoryOfItsChunks) {
  const fs::path orbax = dir_.path() / "orbax";
  fs::copy(tests::SourceDir() / "tests/convert/orbax/fixtures/files_zarr3", orbax,
           fs::copy_options::recursive);
  const fs::path file = orbax / "numpy/zarr.json";
  using Edit = std::function<void(Json&)>;
  const auto change = [&](const Edit& edit) {
    Json metadata = Json::parse(engine::ReadWholeFile(file, 1 << 20));
    edit(metadata);
    std::ofstream(file) << metadata.dump();
  };
  // 16 TiB: more memory than any machine has.
  change([](Json& metadata) { metadata["shape"] = {int64_t{1} << 22, int64_t{1} << 22}; });
  const std::vector<std::string> faults = Verify(orbax).faults;
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_NE(faults.front().find("'numpy/c/0/1': the chunk is missing"), std::string::npos)
      << faults.front();
  EXPECT_THROW(HashOf(orbax), Error);

  change([](Json& metadata) { metadata["data_type"] = "int4"; });
  const VerifyReport report = Verify(orbax);
  EXPECT_TRUE(report.faults.empty()) << report.faults.front();
  EXPECT_NE(report.held_to.find("1 leaves of unsupported element types"), std::string::npos)
      << report.held_to;
}

TEST_F(CheckpointTools, WeightsAloneAreInTheTypeThatIsAskedFor) {
  const fs::path model = Golden("mistral-tiny");  // f32
  EXPECT_EQ(Run(ExportParamsSpec(model, dir_.path() / "bf16", "bf16")).dtype, "bf16");
  EXPECT_EQ(Run(ExportParamsSpec(model, dir_.path() / "keep", "keep")).dtype, "f32");
  EXPECT_EQ(HashOf(dir_.path() / "keep"), HashOf(model));
  EXPECT_EQ(HashOf(dir_.path() / "bf16"), HashOf(Copy(model, "copy", "bf16")));
  EXPECT_THROW(ExportParamsSpec(model, dir_.path() / "none", "q4_0"), Error);
}

TEST_F(CheckpointTools, ASummarySaysWhatItIs) {
  const Json model = Json::parse(CheckpointSummary(Copy(Golden("gemma2-tiny"), "model")));
  EXPECT_EQ(model["format"], "hf");
  EXPECT_EQ(model["arch"], "gemma2");
  EXPECT_GT(model["tensors"], 4);
  EXPECT_EQ(model["provenance"]["certificate"]["state"], "off");
  const Json adapter =
      Json::parse(CheckpointSummary(tests::LoadGolden("gemma2-tiny/lora").adapter_dir));
  EXPECT_EQ(adapter["format"], "peft");
  EXPECT_EQ(adapter["provenance"], nullptr);
}

}  // namespace
}  // namespace tandem::convert
