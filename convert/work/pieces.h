#pragma once

#include <cstddef>
#include <functional>

#include "convert/tensors/model_source.h"
#include "engine/base/thread_group.h"

namespace tandem::convert {

// Prefaults the pages of a mapped range with one call (MADV_POPULATE_READ), instead of a fault for
// every few pages.
void MapAtOnce(ModelSource::Bytes bytes);

// Calls `use` with pieces of 4 MiB and releases each piece that lies in a mapped file. Returns
// early when the group stops.
void InPieces(const ModelSource& source, ModelSource::Bytes bytes, const ThreadGroup& group,
              const std::function<void(ModelSource::Bytes piece, size_t offset)>& use);

}  // namespace tandem::convert
