#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "bench/objects_bench.h"
#include "bench/orbax_bench.h"
#include "convert/tensors/model_source.h"
#include "server/cli/bench/bench_verbs.h"

namespace tandem::server {

void AddOrbaxBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::OrbaxBenchOptions>();
  command.add_option("path", options->path, "MaxText checkpoint to import")->required();
  command.add_option("--base", options->base,
                     "directory of the model, if the checkpoint has no config.json beside it");
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  const auto dtype = std::make_shared<std::string>();
  command.add_option("--dtype", *dtype, "type that tensors are decoded to (default: the model's)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  const auto chunk_mib = std::make_shared<int64_t>(0);
  command
      .add_option("--chunk-mib", *chunk_mib,
                  "measure a copy rewritten in chunks of at most this many MiB (0: the checkpoint "
                  "as stored)")
      ->check(CLI::Range(0, 1 << 20));
  command.callback([options, dtype, chunk_mib, &exit_code] {
    if (!dtype->empty()) options->dtype = convert::FloatTypeOf(*dtype);
    options->max_chunk_bytes = *chunk_mib << 20;
    exit_code = bench::RunOrbaxBench(std::cout, *options);
  });
}

void AddObjectsBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::ObjectsBenchOptions>();
  command.add_option("url", options->url, "s3:// or gs:// URL below which files are written")
      ->required();
  command.add_option("--dir", options->dir, "directory for the files")->required();
  command.add_option("--file-mib", options->file_mib, "size of a file, in MiB")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--files", options->files, "number of files")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command.add_option("--connections", options->connections, "number of connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.callback(
      [options, &exit_code] { exit_code = bench::RunObjectsBench(std::cout, *options); });
}

}  // namespace tandem::server
