#include "training/data/text_bytes.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/mapped_file.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";
constexpr size_t kUnpackedBlock = size_t{1} << 20;

Error BadArchive(const fs::path& path, const std::string& what) {
  return {ErrorCode::kDataLoss, path.string() + ": " + what};
}

void AppendUnpacked(const fs::path& path, const char* bytes, size_t n, std::string* text) {
  if (text->size() + n > TextBytes::kMaxUnpacked) {
    throw BadArchive(path, "unpacks to more than " + std::to_string(TextBytes::kMaxUnpacked >> 30) +
                               " GiB: unpack the file first");
  }
  text->append(bytes, n);
}

std::string UnpackGzip(const fs::path& path, std::string_view packed) {
  z_stream stream{};
  constexpr int kGzipOnly = 15 + 16;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) throw BadArchive(path, "gzip cannot start");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, inflateEnd);
  std::string text;
  std::vector<char> block(kUnpackedBlock);
  while (!packed.empty()) {
    const size_t given = std::min(packed.size(), kUnpackedBlock);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<uInt>(given);
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    AppendUnpacked(path, block.data(), block.size() - stream.avail_out, &text);
    packed.remove_prefix(given - stream.avail_in);
    if (result == Z_STREAM_END) {
      // Another member may follow; zeros pad some archives.
      packed.remove_prefix(std::min(packed.find_first_not_of('\0'), packed.size()));
      if (packed.empty()) return text;
      if (!packed.starts_with(kGzipMagic) || inflateReset(&stream) != Z_OK) {
        throw BadArchive(path, "has bytes after its gzip data");
      }
    } else if (result != Z_OK) {
      throw BadArchive(path, "its gzip data are damaged");
    }
  }
  throw BadArchive(path, "its gzip data end early");
}

std::string UnpackZstd(const fs::path& path, std::string_view packed) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  if (!context) throw BadArchive(path, "zstd cannot start");
  std::string text;
  std::vector<char> block(kUnpackedBlock);
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  for (;;) {
    ZSTD_outBuffer out{block.data(), block.size(), 0};
    const size_t before = in.pos;
    const size_t result = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(result) != 0) {
      throw BadArchive(path,
                       std::string("its zstd data are damaged: ") + ZSTD_getErrorName(result));
    }
    AppendUnpacked(path, block.data(), out.pos, &text);
    if (result == 0 && in.pos == in.size) return text;
    if (in.pos == in.size && in.pos == before && out.pos < out.size) {
      throw BadArchive(path, "its zstd data end early");
    }
  }
}

}  // namespace

TextBytes OpenTextBytes(const fs::path& path) {
  auto file = engine::MappedFile::Open(path);
  const std::string_view bytes{reinterpret_cast<const char*>(file->bytes().data()),
                               file->bytes().size()};
  const bool is_gzip = bytes.starts_with(kGzipMagic);
  if (!is_gzip && !bytes.starts_with(kZstdMagic)) return {std::move(file), bytes};
  auto text = std::make_shared<const std::string>(is_gzip ? UnpackGzip(path, bytes)
                                                          : UnpackZstd(path, bytes));
  const std::string_view view = *text;
  return {std::move(text), view};
}

fs::path WithoutCompression(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const bool is_packed = extension == ".gz" || extension == ".zst" || extension == ".zstd";
  return is_packed ? path.parent_path() / path.stem() : path;
}

}  // namespace tandem::training
