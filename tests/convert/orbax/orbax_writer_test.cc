// The reader returns what the writer wrote, in every variant. Fixtures compare the reader with
// Orbax; oracle.py compares the writer.

#include "convert/orbax/orbax_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "convert/orbax/orbax_checkpoint.h"
#include "convert/orbax/zarr_writer.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using Bytes = std::vector<std::byte>;

struct Array {
  OrbaxItemWriter::Path path;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Bytes bytes;
};

Array Random(OrbaxItemWriter::Path path, DType dtype, std::vector<int64_t> shape) {
  Array array{std::move(path), dtype, std::move(shape), {}};
  std::minstd_rand random(static_cast<unsigned>(array.path.size() + array.shape.size()));
  size_t n = engine::DTypeBytes(dtype);
  for (const int64_t size : array.shape) n *= static_cast<size_t>(size);
  array.bytes.resize(n);
  for (std::byte& byte : array.bytes) byte = static_cast<std::byte>(random() >> 8);
  return array;
}

std::vector<Array> Arrays() {
  return {Random({"params", "a", "kernel"}, DType::kF32, {12, 3, 10}),
          Random({"params", "a", "scale"}, DType::kBF16, {7}),
          Random({"params", "b"}, DType::kF16, {35, 11}),
          Random({"params", "zero"}, DType::kF32, {}),
          Random({"params", "none"}, DType::kF32, {0, 4}),
          Random({"flags"}, DType::kI8, {4, 6, 2, 5}),
          Random({"numbers"}, DType::kI32, {1031})};
}

void WriteItem(const fs::path& dir, const OrbaxStorage& storage, const std::vector<Array>& arrays) {
  ThreadPool pool(2);
  OrbaxItemWriter writer(dir, storage, pool);
  for (const Array& array : arrays) {
    writer.AddArray(array.path, array.dtype, array.shape, array.bytes);
  }
  writer.AddScalar({"step"}, 17);
  writer.AddEmptyDict({"opt_state"});
  writer.Finish();
}

void ExpectItem(const fs::path& dir, const std::vector<Array>& arrays) {
  const auto checkpoint = OrbaxCheckpoint::Open(dir);
  ASSERT_EQ(checkpoint.leaves().size(), arrays.size() + 2);
  for (const auto& leaf : checkpoint.leaves()) {
    SCOPED_TRACE(leaf.name());
    if (leaf.name() == "opt_state") {
      EXPECT_EQ(leaf.value_type, "Dict");
      EXPECT_FALSE(leaf.array);
      continue;
    }
    ASSERT_TRUE(leaf.array);
    Bytes bytes(static_cast<size_t>(leaf.array->bytes()));
    checkpoint.Read(leaf, bytes);
    if (leaf.name() == "step") {
      int64_t step = 0;
      ASSERT_EQ(bytes.size(), sizeof(step));
      std::memcpy(&step, bytes.data(), sizeof(step));
      EXPECT_EQ(step, 17);
      continue;
    }
    const auto wanted = std::find_if(arrays.begin(), arrays.end(),
                                     [&](const Array& array) { return array.path == leaf.path; });
    ASSERT_NE(wanted, arrays.end());
    EXPECT_EQ(leaf.array->dtype, wanted->dtype);
    EXPECT_EQ(leaf.array->shape, wanted->shape);
    EXPECT_EQ(bytes, wanted->bytes);
  }
}

TEST(OrbaxWriter, EveryVariantIsReadBack) {
  for (const bool ocdbt : {false, true}) {
    for (const int zarr : {2, 3}) {
      for (const int64_t chunk : {int64_t{1} << 24, int64_t{100}}) {
        SCOPED_TRACE(std::to_string(ocdbt) + " " + std::to_string(zarr) + " " +
                     std::to_string(chunk));
        const tests::TemporaryDir dir;
        const std::vector<Array> arrays = Arrays();
        WriteItem(dir.path() / "items", {.ocdbt = ocdbt, .zarr = zarr, .max_chunk_bytes = chunk},
                  arrays);
        ExpectItem(dir.path() / "items", arrays);
        EXPECT_EQ(fs::exists(dir.path() / "items/manifest.ocdbt"), ocdbt);
      }
    }
  }
}

// Nodes of a few entries: leaves, several levels of inner nodes, and many data files.
TEST(OrbaxWriter, ADatabaseOfManyNodesAndFilesIsReadBack) {
  for (const size_t node_bytes : {size_t{1}, size_t{700}, size_t{4000}}) {
    for (const size_t inline_bytes : {size_t{0}, size_t{30}, size_t{5000}}) {
      const tests::TemporaryDir dir;
      const std::vector<Array> arrays = Arrays();
      const OrbaxStorage storage{.max_chunk_bytes = 100,
                                 .ocdbt_sizes = {.max_inline_value_bytes = inline_bytes,
                                                 .max_decoded_node_bytes = node_bytes,
                                                 .max_file_bytes = 3000}};
      WriteItem(dir.path(), storage, arrays);
      ExpectItem(dir.path(), arrays);
    }
  }
}

TEST(OrbaxWriter, ChunksAreEqualPartsBelowTheBound) {
  const ZarrArray array = PlanZarr(3, DType::kBF16, {30, 7, 11}, 200);
  EXPECT_EQ(array.chunk_shape, (std::vector<int64_t>{1, 7, 11}));
  EXPECT_EQ(PlanZarr(2, DType::kF32, {30, 7, 11}, 60).chunk_shape,
            (std::vector<int64_t>{1, 1, 11}));
  EXPECT_EQ(PlanZarr(2, DType::kF32, {4, 6}, 50).chunk_shape, (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(PlanZarr(2, DType::kF32, {4, 6}, 1 << 20).chunk_shape, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(PlanZarr(2, DType::kF32, {0, 6}, 1 << 20).chunk_shape, (std::vector<int64_t>{1, 6}));
  EXPECT_THROW(PlanZarr(4, DType::kF32, {1}, 100), Error);
}

TEST(OrbaxWriter, AStepIsFinishedByItsMetadata) {
  const tests::TemporaryDir dir;
  WriteItem(dir.path() / "0/items", {}, Arrays());
  WriteItem(dir.path() / "7/items", {}, Arrays());
  WriteOrbaxStep(dir.path() / "7", R"({"scan_layers": true})", 7);
  EXPECT_EQ(OrbaxCheckpoint::Open(dir.path()).item_dir(), dir.path() / "7/items");
  const auto json =
      nlohmann::json::parse(engine::ReadWholeFile(dir.path() / "7/_CHECKPOINT_METADATA", 1 << 20));
  EXPECT_EQ(json["custom_metadata"]["scan_layers"], true);
  EXPECT_EQ(json["commit_timestamp_nsecs"], 7);
}

std::map<std::string, std::string> FilesOf(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative(dir)] = engine::ReadWholeFile(entry.path(), 1 << 20);
  }
  return files;
}

void Finish(OrbaxItemWriter& writer) {
  writer.AddScalar({"step"}, 17);
  writer.AddEmptyDict({"opt_state"});
  writer.Finish();
}

// Storage variants with many chunks, data files and inline values.
std::vector<OrbaxStorage> Storages() {
  std::vector<OrbaxStorage> storages;
  for (const bool ocdbt : {false, true}) {
    for (const int zarr : {2, 3}) {
      storages.push_back({.ocdbt = ocdbt,
                          .zarr = zarr,
                          .max_chunk_bytes = 100,
                          .ocdbt_sizes = {.max_inline_value_bytes = 90,
                                          .max_decoded_node_bytes = 700,
                                          .max_file_bytes = 1500}});
    }
  }
  return storages;
}

// Resumes a writer that was killed after its first arrays, in the middle of the next, or after the
// last.
TEST(OrbaxWriter, AnotherGoesOnAndWritesTheSameBytes) {
  std::vector<Array> arrays = Arrays();
  arrays.pop_back();  // the one of a thousand chunks
  ThreadPool pool(2);
  for (const OrbaxStorage& storage : Storages()) {
    SCOPED_TRACE(std::to_string(storage.ocdbt) + " " + std::to_string(storage.zarr));
    const tests::TemporaryDir dir;
    WriteItem(dir.path() / "whole", storage, arrays);
    const auto whole = FilesOf(dir.path() / "whole");
    for (size_t n = 0; n <= arrays.size(); ++n) {
      const fs::path item = dir.path() / std::to_string(n);
      std::vector<StoredArray> stored;
      {
        OrbaxItemWriter killed(item, storage, pool);
        for (const Array& array : arrays) {
          stored.push_back(killed.AddArray(array.path, array.dtype, array.shape, array.bytes));
        }
        Finish(killed);
      }
      std::ofstream(item / "stray") << "of nobody";

      OrbaxItemWriter writer(item, storage, pool);
      for (size_t i = 0; i < n; ++i) {
        const Array& array = arrays[i];
        ASSERT_TRUE(writer.Restore(array.path, array.dtype, array.shape, stored[i])) << i;
      }
      writer.RemoveOthers();
      for (size_t i = n; i < arrays.size(); ++i) {
        const Array& array = arrays[i];
        EXPECT_EQ(writer.AddArray(array.path, array.dtype, array.shape, array.bytes), stored[i]);
      }
      Finish(writer);

      EXPECT_EQ(FilesOf(item), whole) << n;
    }
  }
}

TEST(OrbaxWriter, WhatIsNotThereAsToldIsNotGoneOnWith) {
  ThreadPool pool(2);
  for (const OrbaxStorage& storage : Storages()) {
    SCOPED_TRACE(std::to_string(storage.ocdbt) + " " + std::to_string(storage.zarr));
    const tests::TemporaryDir dir;
    const Array array = Random({"a"}, DType::kF32, {64, 32});
    StoredArray stored;
    {
      OrbaxItemWriter killed(dir.path(), storage, pool);
      stored = killed.AddArray(array.path, array.dtype, array.shape, array.bytes);
    }
    const auto restores = [&](const StoredArray& told) {
      OrbaxItemWriter writer(dir.path(), storage, pool);
      return writer.Restore(array.path, array.dtype, array.shape, told);
    };
    ASSERT_TRUE(restores(stored));

    StoredArray other = stored;
    other.pop_back();
    EXPECT_FALSE(restores(other));
    other = stored;
    other.back().bytes += 1;
    EXPECT_FALSE(restores(other));
    other.back().bytes = ~uint64_t{0};
    EXPECT_FALSE(restores(other));
    other = stored;
    other.back() = {.bytes = 3, .inlined = "abcd"};
    EXPECT_FALSE(restores(other));
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir.path())) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    const fs::path last = *std::max_element(files.begin(), files.end());
    fs::resize_file(last, fs::file_size(last) - 1);
    EXPECT_FALSE(restores(stored));
    fs::remove(last);
    EXPECT_FALSE(restores(stored));
    fs::create_symlink("elsewhere", last);
    EXPECT_FALSE(restores(stored));
  }
}

TEST(OrbaxWriter, KeysThatWouldBeOtherPathsAreRefused) {
  const tests::TemporaryDir dir;
  ThreadPool pool(1);
  for (const bool ocdbt : {false, true}) {
    OrbaxItemWriter writer(dir.path() / (ocdbt ? "a" : "b"), {.ocdbt = ocdbt}, pool);
    for (const char* key : {"..", "", "a/b", "it's", "\n", "\\", "."}) {
      EXPECT_THROW(writer.AddScalar({"params", key}, 1), Error) << key;
    }
  }
}

// A changed byte of a chunk is detected: frames have checksums.
TEST(OrbaxWriter, DamagedChunksAreRefused) {
  const tests::TemporaryDir dir;
  const std::vector<Array> arrays = {Random({"a"}, DType::kF32, {64, 32})};
  WriteItem(dir.path(), {.ocdbt = false}, arrays);
  const fs::path file = dir.path() / "a/c/0/0";
  const std::string text = engine::ReadWholeFile(file, 1 << 20);
  const auto checkpoint = OrbaxCheckpoint::Open(dir.path());
  for (size_t at = 0; at < text.size(); at += 97) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    std::ofstream(file, std::ios::binary) << damaged;
    Bytes bytes(arrays[0].bytes.size());
    const auto read = [&] { checkpoint.Read(checkpoint.leaves()[0], bytes); };
    try {
      read();
      EXPECT_EQ(bytes, arrays[0].bytes) << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace tandem::convert
