#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/hub/api.h"
#include "engine/hub/cache.h"

namespace tandem::engine {

// How far a pull is. Written by its threads, read by any.
struct PullCounters {
  std::atomic<uint64_t> bytes_total{0};
  std::atomic<uint64_t> bytes_done{0};     // on disk, from earlier attempts too
  std::atomic<uint64_t> bytes_fetched{0};  // over the network, by this attempt
  std::atomic<int> files_total{0};
  std::atomic<int> files_done{0};
};

// A blob to be fetched, and the files of the snapshot that it is the content of.
struct BlobToFetch {
  RepoFile file;  // the first of them, by which it is asked for
  std::vector<std::string> names;
  FileLocation location;
};

// Starts `n` threads, or as many as the system gives, with a warning. Throws kResourceExhausted
// when it does not give one.
std::vector<std::jthread> StartWorkers(size_t n, const std::function<std::jthread()>& start);

// Calls `work(client, i)` for every i below n, from several threads with a connection each. The
// first exception stops the others and goes on.
void ForEachInParallel(HttpShared& shared, size_t n,
                       const std::function<void(HttpClient& client, size_t i)>& work);

// Fetches the blobs, several at once and large ones in several pieces at once, and links the files
// to them. A blob that another process is writing is waited for, and taken from it. Throws
// kDataLoss for contents that are not what the hub says, kIo when the disk refuses.
void FetchBlobs(HttpShared& shared, const HubCache& cache, const HubReference& reference,
                const std::string& commit, std::vector<BlobToFetch> blobs, PullCounters& counters);

}  // namespace tandem::engine
