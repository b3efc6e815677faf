#include "bench/make_model.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "server/cli/bench/bench_verbs.h"

namespace tandem::server {

void AddMakeModel(CLI::App& command, int&) {
  struct Flags {
    std::string shape;
    std::string dir;
    std::string dtype = "bf16";
    int64_t layers = 0;
  };
  const auto flags = std::make_shared<Flags>();
  std::vector<std::string> names;
  std::string help = "one of";
  for (const bench::ModelShape& shape : bench::ModelShapes()) {
    names.emplace_back(shape.name);
    help += std::string("\n  ") + shape.name + ": " + shape.description;
  }
  command.add_option("shape", flags->shape, help)->required()->check(CLI::IsMember(names));
  command.add_option("dir", flags->dir, "directory to write; must not exist")->required();
  command.add_option("--layers", flags->layers, "number of layers to write (0: all)")
      ->capture_default_str();
  command.add_option("--dtype", flags->dtype, "weight type")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command.callback([flags] {
    bench::MakeModel(flags->shape, flags->dir, flags->layers,
                     flags->dtype == "f32" ? engine::DType::kF32 : engine::DType::kBF16);
    std::cout << "wrote " << flags->dir << "\n";
  });
}

}  // namespace tandem::server
