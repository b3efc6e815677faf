#include "training/data/parquet/codecs.h"

#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "engine/base/check.h"

namespace tandem::training {
namespace {

const char* Chars(std::span<const std::byte> bytes) {
  return reinterpret_cast<const char*>(bytes.data());
}

bool Snappy(std::span<const std::byte> bytes, std::span<std::byte> out) {
  size_t size = 0;
  return snappy::GetUncompressedLength(Chars(bytes), bytes.size(), &size) && size == out.size() &&
         snappy::RawUncompress(Chars(bytes), bytes.size(), reinterpret_cast<char*>(out.data()));
}

bool Zstd(std::span<const std::byte> bytes, std::span<std::byte> out) {
  const size_t size = ZSTD_decompress(out.data(), out.size(), bytes.data(), bytes.size());
  return ZSTD_isError(size) == 0 && size == out.size();
}

// Releases zlib's memory on every exit.
class InflateStream {
 public:
  // 32: detects gzip's or zlib's frame; 15: the largest window.
  InflateStream() { TANDEM_CHECK(inflateInit2(&stream_, 32 + 15) == Z_OK); }
  ~InflateStream() { inflateEnd(&stream_); }
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;
  z_stream& get() { return stream_; }

 private:
  z_stream stream_{};
};

// A page may consist of several gzip members.
bool Gzip(std::span<const std::byte> bytes, std::span<std::byte> out) {
  // Both sizes belong to a page; the format stores them in 32 bits.
  InflateStream inflater;
  z_stream& stream = inflater.get();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  while (true) {
    const int code = inflate(&stream, Z_FINISH);
    if (code != Z_STREAM_END) return false;
    if (stream.avail_in == 0) return stream.avail_out == 0;
    if (inflateReset(&stream) != Z_OK) return false;
  }
}

}  // namespace

bool IsCodecRead(ParquetCodec codec) {
  switch (codec) {
    case ParquetCodec::kUncompressed:
    case ParquetCodec::kSnappy:
    case ParquetCodec::kGzip:
    case ParquetCodec::kZstd:
      return true;
  }
  return false;
}

void Decompress(ParquetCodec codec, std::span<const std::byte> bytes, std::span<std::byte> out,
                const ParquetPlace& place) {
  TANDEM_CHECK(bytes.size() <= std::numeric_limits<uint32_t>::max() &&
               out.size() <= std::numeric_limits<uint32_t>::max());
  bool is_good = false;
  switch (codec) {
    case ParquetCodec::kUncompressed:
      is_good = bytes.size() == out.size();
      if (is_good) std::copy(bytes.begin(), bytes.end(), out.begin());
      break;
    case ParquetCodec::kSnappy:
      is_good = Snappy(bytes, out);
      break;
    case ParquetCodec::kGzip:
      is_good = Gzip(bytes, out);
      break;
    case ParquetCodec::kZstd:
      is_good = Zstd(bytes, out);
      break;
  }
  if (!is_good) {
    place.Broken("a page of " + std::to_string(bytes.size()) + " bytes does not decompress (" +
                 NameOf(codec) + ") to the declared " + std::to_string(out.size()));
  }
}

uint32_t PageCrc(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace tandem::training
