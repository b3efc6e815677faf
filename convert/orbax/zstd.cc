#include "convert/orbax/zstd.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/aligned_buffer.h"
#include "engine/base/error.h"

namespace tandem::convert {
namespace {

[[noreturn]] void Broken(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::kDataLoss, what + ": zstd: " + why);
}

std::string InsteadOf(size_t is, size_t size) {
  return "the frame contains " + std::to_string(is) + " bytes instead of " + std::to_string(size);
}

}  // namespace

struct ZstdDecoder::Context {
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> zstd{ZSTD_createDCtx(), ZSTD_freeDCtx};
};

ZstdDecoder::ZstdDecoder() : context_(std::make_unique<Context>()) {
  if (context_->zstd == nullptr) throw std::bad_alloc();
}
ZstdDecoder::~ZstdDecoder() = default;

void ZstdDecoder::Decode(std::span<const std::byte> bytes, std::span<std::byte> out,
                         const std::string& what) {
  const size_t size =
      ZSTD_decompressDCtx(context_->zstd.get(), out.data(), out.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(size) != 0) Broken(what, ZSTD_getErrorName(size));
  if (size != out.size()) Broken(what, InsteadOf(size, out.size()));
}

void ZstdDecoder::DecodeInPieces(std::span<const std::byte> bytes, size_t size,
                                 std::span<std::byte> room, const std::string& what,
                                 const TakePiece& take) {
  ZSTD_DCtx* const zstd = context_->zstd.get();
  ZSTD_DCtx_reset(zstd, ZSTD_reset_session_only);
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  size_t done = 0;
  size_t pending = 1;  // 0 at the end of the frame
  ZSTD_outBuffer to{room.data(), room.size(), 0};
  while (in.pos < in.size || pending != 0) {
    const size_t had = to.pos;
    const size_t taken = in.pos;
    pending = ZSTD_decompressStream(zstd, &to, &in);
    if (ZSTD_isError(pending) != 0) {
      // The frame needs a larger window than streaming supports.
      const bool is_whole = ZSTD_getErrorCode(pending) == ZSTD_error_frameParameter_windowTooLarge;
      if (is_whole && done == 0 && to.pos == 0) return DecodeAtOnce(bytes, size, what, take);
      Broken(what, ZSTD_getErrorName(pending));
    }
    if (to.pos == had && in.pos == taken) Broken(what, "the frame ends too early");
    if (done + to.pos > size)
      Broken(what, "the frame contains more than " + std::to_string(size) + " bytes");
    if (to.pos < room.size() && done + to.pos < size) continue;
    if (to.pos > 0) take(static_cast<int64_t>(done), room.first(to.pos));
    done += std::exchange(to.pos, 0);
  }
  if (done + to.pos != size) Broken(what, InsteadOf(done + to.pos, size));
}

void ZstdDecoder::DecodeAtOnce(std::span<const std::byte> bytes, size_t size,
                               const std::string& what, const TakePiece& take) {
  AlignedBuffer out(size);  // untouched pages cost nothing
  Decode(bytes, out.span(), what);
  take(0, out.span());
}

std::vector<std::byte> DecodeZstdUpTo(std::span<const std::byte> bytes, size_t most,
                                      const std::string& what) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  if (context == nullptr) throw std::bad_alloc();
  std::vector<std::byte> out;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  size_t pending = 1;  // 0 at the end of the frame
  while (in.pos < in.size || pending != 0) {
    const size_t had = out.size();
    if (had == most)
      Broken(what, "the frame contains more than " + std::to_string(most) + " bytes");
    out.resize(std::min(most, std::max(2 * had, size_t{64} << 10)));
    ZSTD_outBuffer to{out.data(), out.size(), had};
    const size_t taken = in.pos;
    pending = ZSTD_decompressStream(context.get(), &to, &in);
    if (ZSTD_isError(pending) != 0) Broken(what, ZSTD_getErrorName(pending));
    out.resize(to.pos);
    if (to.pos == had && in.pos == taken) Broken(what, "the frame ends too early");
  }
  return out;
}

std::vector<std::byte> EncodeZstd(std::span<const std::byte> bytes) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(),
                                                                   ZSTD_freeCCtx);
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::vector<std::byte> out(ZSTD_compressBound(bytes.size()));
  const size_t size =
      ZSTD_compress2(context.get(), out.data(), out.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(size) != 0) {
    throw Error(ErrorCode::kInternal, std::string("zstd: ") + ZSTD_getErrorName(size));
  }
  out.resize(size);
  return out;
}

}  // namespace tandem::convert
