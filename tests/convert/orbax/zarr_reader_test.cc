#include "convert/orbax/zarr_reader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "convert/orbax/zarr_writer.h"
#include "convert/orbax/zstd.h"
#include "engine/base/error.h"

namespace tandem::convert {
namespace {

// Starts at most one thread per task; each thread takes the next task.
ParallelFor OnThreads(int n_threads) {
  return [n_threads](int64_t n, const std::function<void(int64_t)>& task) {
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(n_threads));
    for (int i = 0; i < n_threads; ++i) {
      threads.emplace_back([&] {
        for (int64_t at = next++; at < n; at = next++) task(at);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return true;
  };
}

class InMemory : public KeyValues {
 public:
  std::optional<StoredBytes> Find(const std::string& key) const override {
    const auto found = values.find(key);
    if (found == values.end()) return std::nullopt;
    return StoredBytes{nullptr, found->second, nullptr};
  }
  std::vector<std::string> Keys() const override { return {}; }

  std::map<std::string, std::vector<std::byte>> values;
};

// An f32 array [64, 8] in 32 chunks of two rows, and ways to read it.
class ZarrReaderTest : public testing::Test {
 protected:
  ZarrReaderTest() : numbers_(64 * 8), store_(std::make_shared<InMemory>()) {
    std::iota(numbers_.begin(), numbers_.end(), 0.5f);
    array_ = PlanZarr(2, engine::DType::kF32, {64, 8}, 64);
    for (int64_t i = 0; i < ZarrChunkCount(array_); ++i) {
      Chunk(i) = EncodeZarrChunk(array_, i, std::as_bytes(std::span(numbers_)));
    }
  }

  std::vector<std::byte>& Chunk(int64_t i) {
    return store_->values["x/" + ZarrChunkKey(array_, ZarrChunkPosition(array_, i))];
  }
  void Remove(int64_t i) {
    store_->values.erase("x/" + ZarrChunkKey(array_, ZarrChunkPosition(array_, i)));
  }
  void Damage(int64_t i) { Chunk(i)[Chunk(i).size() - 1] ^= std::byte{1}; }  // its checksum

  std::vector<float> Read(const ParallelFor& parallel_for) const {
    std::vector<float> out(static_cast<size_t>(array_.elements()));
    ZarrReader(store_).Read("x", array_, std::as_writable_bytes(std::span(out)), parallel_for);
    return out;
  }
  std::vector<float> ReadRuns(const ParallelFor& parallel_for) const {
    std::vector<float> out(static_cast<size_t>(array_.elements()));
    const auto put = [&](int64_t offset, std::span<const std::byte> run) {
      std::memcpy(
          std::as_writable_bytes(std::span(out)).subspan(static_cast<size_t>(offset)).data(),
          run.data(), run.size());
    };
    ZarrReader(store_).ReadRuns("x", array_, put, parallel_for);
    return out;
  }
  // Expects the fault from every way to read, for several thread counts, repeatedly.
  void ExpectFault(const std::string& words) const {
    for (const int n_threads : {1, 2, 3, 8}) {
      for (int round = 0; round < 20; ++round) {
        const ParallelFor parallel_for = OnThreads(n_threads);
        for (const bool runs : {false, true}) {
          try {
            runs ? ReadRuns(parallel_for) : Read(parallel_for);
            ADD_FAILURE() << "was read";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
            EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
          }
        }
      }
    }
  }

  std::vector<float> numbers_;
  ZarrArray array_;
  std::shared_ptr<InMemory> store_;
};

TEST_F(ZarrReaderTest, IsTheSameOnAnyNumberOfThreads) {
  ASSERT_EQ(ZarrChunkCount(array_), 32);
  for (const int n_threads : {1, 2, 5, 40}) {
    EXPECT_EQ(Read(OnThreads(n_threads)), numbers_);
    EXPECT_EQ(ReadRuns(OnThreads(n_threads)), numbers_);
  }
  EXPECT_EQ(Read(OneByOne), numbers_);
}

TEST_F(ZarrReaderTest, OfDamagedChunksTheFirstIsNamed) {
  Damage(17);
  Damage(18);
  Damage(31);
  ExpectFault("'x/17.0'");
}

TEST_F(ZarrReaderTest, AMissingChunkDoesNotHideADamagedOneBeforeIt) {
  Remove(20);
  Damage(30);
  ExpectFault("'x/20.0': the chunk is missing");
  Damage(19);
  ExpectFault("'x/19.0'");
}

TEST_F(ZarrReaderTest, ChunksOfAnotherLengthAreRefused) {
  const std::vector<std::byte> whole = Chunk(9);
  for (const size_t bytes : {size_t{0}, size_t{60}, size_t{68}, size_t{200}}) {
    Chunk(9) = EncodeZstd(std::vector<std::byte>(bytes));
    ExpectFault("'x/9.0': zstd: ");
  }
  Chunk(9) = whole;
  Chunk(9).insert(Chunk(9).end(), whole.begin(), whole.end());  // two frames, twice the size
  ExpectFault("'x/9.0': zstd: ");
  for (size_t bytes = 0; bytes < whole.size(); bytes += 5) {
    Chunk(9).assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
    ExpectFault("'x/9.0': zstd: ");
  }
}

TEST_F(ZarrReaderTest, WhatTakingThrowsGoesOnOnce) {
  const auto refuse = [](int64_t offset, std::span<const std::byte>) {
    if (offset >= 640) throw Error(ErrorCode::kIo, "at " + std::to_string(offset));
  };
  for (int round = 0; round < 50; ++round) {
    try {
      ZarrReader(store_).ReadRuns("x", array_, refuse, OnThreads(4));
      ADD_FAILURE() << "went on";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "at 640");
    }
  }
}

TEST_F(ZarrReaderTest, WhatIsToStopIsCancelled) {
  const ParallelFor stops = [](int64_t, const std::function<void(int64_t)>& task) {
    task(0);
    return false;
  };
  try {
    Read(stops);
    ADD_FAILURE() << "went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

// Ten rows in chunks of four: two rows of the last chunk are beyond the end.
TEST_F(ZarrReaderTest, AChunkMayReachBeyondTheEnd) {
  numbers_.resize(12 * 8);
  ZarrArray whole = array_;
  whole.shape = {12, 8};
  whole.chunk_shape = {4, 8};
  for (int64_t i = 0; i < 3; ++i) {
    store_->values["x/" + std::to_string(i) + ".0"] =
        EncodeZarrChunk(whole, i, std::as_bytes(std::span(numbers_)));
  }
  array_ = whole;
  array_.shape = {10, 8};
  numbers_.resize(10 * 8);
  ASSERT_TRUE(HasRuns(array_));
  EXPECT_EQ(Read(OnThreads(2)), numbers_);
  EXPECT_EQ(ReadRuns(OnThreads(2)), numbers_);
}

TEST_F(ZarrReaderTest, ChunksOfSomeColumnsArePutWhereTheyBelong) {
  ZarrArray tiles = array_;
  tiles.chunk_shape = {16, 4};
  for (int64_t i = 0; i < 8; ++i) {
    store_->values["x/" + ZarrChunkKey(tiles, ZarrChunkPosition(tiles, i))] =
        EncodeZarrChunk(tiles, i, std::as_bytes(std::span(numbers_)));
  }
  array_ = tiles;
  EXPECT_FALSE(HasRuns(array_));
  EXPECT_EQ(Read(OnThreads(3)), numbers_);
}

// Decoding in pieces gives the same bytes as decoding at once, for any piece size.
TEST(ZstdDecoder, PiecesAreTheWhole) {
  std::vector<std::byte> bytes(100'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 7);
  const std::vector<std::byte> stored = EncodeZstd(bytes);
  ZstdDecoder decoder;
  for (const size_t room_bytes : {size_t{1}, size_t{999}, size_t{100'000}, size_t{300'000}}) {
    std::vector<std::byte> room(room_bytes);
    std::vector<std::byte> out;
    decoder.DecodeInPieces(stored, bytes.size(), room, "x", [&](int64_t offset, auto piece) {
      EXPECT_EQ(offset, static_cast<int64_t>(out.size()));
      out.insert(out.end(), piece.begin(), piece.end());
    });
    EXPECT_EQ(out, bytes);
  }
}

// A small frame that declares a window of 256 MiB, above the limit for decoding in pieces.
TEST(ZstdDecoder, AWindowThatIsTooLargeIsDecodedAtOnce) {
  const std::string frame(
      "\x28\xb5\x2f\xfd\x00\x90\x19\x00\x00"
      "abc",
      12);
  ZstdDecoder decoder;
  std::vector<std::byte> room(16);
  std::string out;
  decoder.DecodeInPieces(std::as_bytes(std::span(frame)), 3, room, "x", [&](int64_t, auto piece) {
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  EXPECT_EQ(out, "abc");
  EXPECT_THROW(
      decoder.DecodeInPieces(std::as_bytes(std::span(frame)), 4, room, "x", [](int64_t, auto) {}),
      Error);
}

}  // namespace
}  // namespace tandem::convert
