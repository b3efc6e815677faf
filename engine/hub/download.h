#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/hub/api.h"
#include "engine/hub/cache.h"

namespace tandem::engine {

// Progress of a pull. Its threads write it; any thread may read it.
struct PullCounters {
  std::atomic<uint64_t> bytes_total{0};
  std::atomic<uint64_t> bytes_done{0};     // on disk, earlier attempts included
  std::atomic<uint64_t> bytes_fetched{0};  // over the network by this attempt
  std::atomic<int> files_total{0};
  std::atomic<int> files_done{0};
};

// A blob to fetch, with the snapshot files that have this content.
struct BlobToFetch {
  RepoFile file;  // the first of these files, used in requests
  std::vector<std::string> names;
  FileLocation location;
};

// Calls `start` n times to start as many threads, or fewer with a warning: kResourceExhausted from
// `start` means that the system allows no more. Rethrows it when there is not even one thread.
void StartWorkers(size_t n, const std::function<void()>& start);

// Calls `work(client, i)` for every i below n from several threads, each with its own connection.
// The first exception stops the others and is rethrown.
void ForEachInParallel(HttpShared& shared, size_t n,
                       const std::function<void(HttpClient& client, size_t i)>& work);

// Fetches the blobs in parallel, large ones in several segments at once, and links the files to
// them. A blob that another process is writing is awaited and then used. Throws kDataLoss for
// content that does not match the hub's description, and kIo for disk faults.
void FetchBlobs(HttpShared& shared, const HubCache& cache, const HubReference& reference,
                const std::string& commit, std::vector<BlobToFetch> blobs, PullCounters& counters);

}  // namespace tandem::engine
