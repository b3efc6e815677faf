#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "bench/attention_bench.h"
#include "bench/gemm_bench.h"
#include "bench/sample_bench.h"
#include "server/cli/bench/bench_verbs.h"

namespace tandem::server {

void AddGemmBench(CLI::App& command, int& exit_code, bool roof_only) {
  auto options = std::make_shared<bench::GemmBenchOptions>();
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--seconds", options->seconds, "seconds per case")
      ->check(CLI::Range(0.05, 60.0));
  if (!roof_only) {
    command
        .add_option("--types", options->types,
                    "weight type: bf16, f32, int8, int4, int6, q4_k or mxfp4")
        ->check(CLI::IsMember({"bf16", "f32", "int8", "int4", "int6", "q4_k", "mxfp4"}))
        ->delimiter(',')
        ->capture_default_str();
    command.add_flag("--gradients,!--no-gradients", options->gradients,
                     "also measure the two gradient products of bf16 and f32 (default)");
  }
  command.callback([options, &exit_code, roof_only] {
    exit_code = roof_only ? bench::RunRoofBench(std::cout, *options)
                          : bench::RunGemmBench(std::cout, *options);
  });
}

void AddAttentionBench(CLI::App& command, int& exit_code) {
  struct Flags {
    std::string kv_dtype = "auto";
    bench::AttentionBenchOptions options;
  };
  auto flags = std::make_shared<Flags>();
  bench::AttentionBenchOptions& options = flags->options;
  command.add_option("--threads", options.threads, "compute threads (0: one per physical core)");
  command.add_option("--seconds", options.seconds, "seconds per case")
      ->check(CLI::Range(0.05, 60.0));
  command.add_option("--kv-dtype", flags->kv_dtype, "type of keys and values: auto or int8")
      ->check(CLI::IsMember({"auto", "int8"}))
      ->capture_default_str();
  command.add_option("--depths", options.depths, "tokens up to the last row")
      ->check(CLI::Range(64, 1 << 20))
      ->delimiter(',')
      ->capture_default_str();
  command.callback([flags, &exit_code] {
    if (flags->kv_dtype == "int8") flags->options.kv_format = engine::KvFormat::kInt8;
    exit_code = bench::RunAttentionBench(std::cout, flags->options);
  });
}

void AddSampleBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::SampleBenchOptions>();
  command.add_option("--vocab", options->vocab_size, "logits per row")
      ->check(CLI::Range(1024, 1 << 20))
      ->capture_default_str();
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.callback(
      [options, &exit_code] { exit_code = bench::RunSampleBench(std::cout, *options); });
}

}  // namespace tandem::server
