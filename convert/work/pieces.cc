#include "convert/work/pieces.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace tandem::convert {

// Ignores errors: on an older kernel page faults load the pages one by one.
void MapAtOnce(ModelSource::Bytes piece) {
#ifdef MADV_POPULATE_READ
  constexpr uintptr_t kPageBytes = 4096;
  const size_t before = reinterpret_cast<uintptr_t>(piece.data()) % kPageBytes;
  void* page = const_cast<std::byte*>(piece.data()) - before;
  (void)madvise(page, before + piece.size(), MADV_POPULATE_READ);
#else
  (void)piece;
#endif
}

void InPieces(const ModelSource& source, ModelSource::Bytes bytes, const ThreadGroup& group,
              const std::function<void(ModelSource::Bytes piece, size_t offset)>& use) {
  constexpr size_t kPieceBytes = size_t{4} << 20;
  for (size_t at = 0; at < bytes.size() && !group.stopping(); at += kPieceBytes) {
    const ModelSource::Bytes piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    MapAtOnce(piece);
    use(piece, at);
    source.LetGoOf(piece);
  }
}

}  // namespace tandem::convert
