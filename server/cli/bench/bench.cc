#include <CLI/CLI.hpp>

#include "server/cli/bench/bench_verbs.h"
#include "server/cli/verbs.h"

namespace tandem::server {

void AddBench(CLI::App& command, int& exit_code) {
  command.require_subcommand(1);
  AddGemmBench(
      *command.add_subcommand("roof", "peak arithmetic and read bandwidth of this machine"),
      exit_code, true);
  AddAttentionBench(
      *command.add_subcommand("attention", "attention of one layer compared with the roof"),
      exit_code);
  AddGemmBench(*command.add_subcommand("gemm", "matrix kernels compared with the roof"), exit_code,
               false);
  AddStepBench(
      *command.add_subcommand("step", "prefill, one stream and a batch, compared with the roof"),
      exit_code);
  AddCoresBench(*command.add_subcommand(
                    "cores", "steps with 1, 2, 4, ... threads, and simulated on many cores"),
                exit_code);
  AddContextBench(
      *command.add_subcommand("context", "one stream after long prompts, and with guesses"),
      exit_code);
  AddOptimizerBench(
      *command.add_subcommand("optimizer", "optimiser steps compared with a read loop, GB/s"),
      exit_code);
  AddMlpBench(*command.add_subcommand("mlp",
                                      "one feed-forward layer on long sequences, half of it "
                                      "trained: it/s compared with the roof"),
              exit_code);
  AddHeadBench(*command.add_subcommand(
                   "head", "loss over a large vocabulary, compared with its matrix products alone"),
               exit_code);
  AddOrbaxBench(*command.add_subcommand(
                    "orbax", "MaxText checkpoint import, compared with decompression alone"),
                exit_code);
  AddObjectsBench(
      *command.add_subcommand("objects", "uploads to an object store, and fetches from it"),
      exit_code);
  AddTrainBench(
      *command.add_subcommand("train", "training steps, optionally compared with another program"),
      exit_code);
  AddSampleBench(*command.add_subcommand("sample", "token sampling from large vocabularies"),
                 exit_code);
  AddConstrainBench(
      *command.add_subcommand("constrain", "decoding under schemas, compared with free decoding"),
      exit_code);
  AddTokenizerBench(*command.add_subcommand("tokenizer", "text to tokens and back, MB/s per core"),
                    exit_code);
  AddTemplateBench(
      *command.add_subcommand("template", "rendering chats with chat templates, ms each"),
      exit_code);
  AddHttpBench(
      *command.add_subcommand(
          "http",
          "load test of any OpenAI-compatible server, optionally compared with a second one"),
      exit_code);
  AddFairnessBench(*command.add_subcommand(
                       "fairness", "first tokens beside batches and long prompts, over alone"),
                   exit_code);
  AddStatesBench(*command.add_subcommand(
                     "states", "steps with snapshots of states over steps without, and reuse"),
                 exit_code);
  AddMakeModel(
      *command.add_subcommand("make-model", "write a model with random weights for measurements"),
      exit_code);
}

}  // namespace tandem::server
