#include "server/cli/cli.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/cli/job_child.h"
#include "server/cli/usage.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

int ExitCodeOf(const Error& error) {
  if (error.reason() == "in_use") return kExitInUse;
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return 2;
    case ErrorCode::kDataLoss:
      return 65;
    case ErrorCode::kIo:
      return 74;
    case ErrorCode::kCancelled:
      return 130;
    default:
      return 1;
  }
}

constexpr const char* kExitCodes =
    "Exit codes: 0 done; 1 failed; 2 wrong usage, configuration or spec; 65 damaged data;\n"
    "69 directory in use by another process; 74 file or network error;\n"
    "75 interrupted, run the same command again to resume; 130 cancelled.";

// Parses, but throws our own errors for unknown words: they suggest the nearest known one.
void Parse(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) words.emplace_back(argv[i]);
  FindVerb(app, words);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    throw Error(ErrorCode::kInvalidArgument, UnknownWordMessage(app));
  }
}

}  // namespace

int RunCli(int argc, char** argv) {
  try {
    CLI::App app("Tandem trains and serves language models on one engine.", "tandem");
    app.require_subcommand(1);
    app.set_version_flag("--version", VersionLine);
    app.footer(kExitCodes);
    int exit_code = 0;
    for (const Verb& verb : Verbs()) {
      verb.add(*app.add_subcommand(verb.name, verb.description), exit_code);
    }
    try {
      Parse(app, argc, argv);
    } catch (const CLI::ParseError& error) {
      // CLI11 prints help and version requests as "errors" with code 0.
      return app.exit(error) == 0 ? 0 : 2;
    }
    return exit_code;
  } catch (const Error& error) {
    std::fprintf(stderr, "tandem: %s\n", error.what());
    return ExitCodeOf(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tandem: %s\n", error.what());
    return 1;
  }
}

}  // namespace tandem::server
