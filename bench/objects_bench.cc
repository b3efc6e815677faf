#include "bench/objects_bench.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <ostream>
#include <random>
#include <system_error>
#include <vector>

#include "bench/measure/paired.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/objects/object_client.h"
#include "engine/objects/transfer.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;

double SecondsOf(const auto& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void WriteRandomFile(const fs::path& path, int64_t mib, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> block((size_t{1} << 20) / sizeof(uint64_t));
  std::ofstream file(path, std::ios::binary);
  for (int64_t i = 0; i < mib; ++i) {
    for (uint64_t& word : block) word = random();
    file.write(reinterpret_cast<const char*>(block.data()), 1 << 20);
  }
  file.flush();
  if (!file) throw Error(ErrorCode::kIo, "could not write " + path.string());
}

}  // namespace

int RunObjectsBench(std::ostream& out, const ObjectsBenchOptions& options) {
  const auto url = engine::ParseObjectUrl(options.url);
  if (!url || url->key.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "bench objects: give s3://BUCKET/KEY or gs://BUCKET/KEY");
  }
  engine::ObjectOptions store_options = engine::ObjectOptionsFromEnvironment(*url);
  store_options.http.connections = options.connections;
  engine::ObjectStore store(*url, store_options);
  engine::ObjectClient client(store);
  const std::string prefix = engine::AsPrefix(url->key);
  MakeDirectories(options.dir);

  std::vector<engine::FileToUpload> uploads;
  for (int i = 0; i < options.files; ++i) {
    const std::string name = "bench-" + std::to_string(i);
    uploads.push_back({options.dir / name, prefix + name});
    WriteRandomFile(uploads.back().path, options.file_mib, static_cast<uint64_t>(i));
  }
  const auto ignore = [](uint64_t) {};
  std::vector<double> writes;
  std::vector<double> reads;
  for (int round = 0; round < options.rounds; ++round) {
    writes.push_back(SecondsOf([&] { engine::UploadFiles(store, uploads, ignore); }));
    std::vector<engine::ObjectToFetch> fetched;
    for (const engine::FileToUpload& file : uploads) {
      const auto info = client.Find(file.key);
      if (!info) throw Error(ErrorCode::kDataLoss, store.Name(file.key) + " was not uploaded");
      fs::path path = file.path;
      path += ".fetched";
      fetched.push_back({*info, path});
    }
    reads.push_back(SecondsOf([&] { engine::FetchObjects(store, fetched, ignore); }));
    for (const engine::ObjectToFetch& file : fetched) fs::remove(file.path);
  }
  for (const engine::FileToUpload& file : uploads) {
    client.Delete(file.key);
    fs::remove(file.path);
  }
  const double mib = static_cast<double>(options.file_mib) * options.files;
  char line[200];
  std::snprintf(line, sizeof line,
                "%d files of %lld MiB, %d connections; medians of %d rounds\n"
                "written %7.0f MiB/s\nread    %7.0f MiB/s\n",
                options.files, static_cast<long long>(options.file_mib), options.connections,
                options.rounds, mib / Median(writes), mib / Median(reads));
  out << line;
  return 0;
}

}  // namespace tandem::bench
