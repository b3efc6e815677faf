#include "server/cli/cli.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/attempt.h"
#include "server/cli/manual/help.h"
#include "server/cli/manual/help_text.h"
#include "server/cli/manual/usage.h"
#include "server/cli/verbs.h"
#include "server/jobs/exit_codes.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

int ExitCodeOf(const Error& error) {
  if (error.reason() == "in_use") return kExitInUse;
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return kExitUsage;
    case ErrorCode::kDataLoss:
      return kExitBadData;
    case ErrorCode::kIo:
      return kExitIo;
    case ErrorCode::kCancelled:
      return kExitCancelled;
    default:
      return kExitFailed;
  }
}

// Parses, but throws our own errors for unknown words: they suggest the nearest known one.
void Parse(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) words.emplace_back(argv[i]);
  FindVerb(app, words);
  const auto unknown_word = ExceptionOf<CLI::ExtrasError>([&] { app.parse(argc, argv); });
  if (unknown_word) throw Error(ErrorCode::kInvalidArgument, UnknownWordMessage(app));
}

// Returns the exit code. CLI11 prints help and version requests as "errors" with code 0.
int EndOfParsing(CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  throw Error(ErrorCode::kInvalidArgument, WrongUsageMessage(app, error));
}

// Returns the exit code.
int RunVerb(int argc, char** argv) {
  CLI::App app("Tandem trains and serves language models on one engine.", "tandem");
  app.require_subcommand(1);
  app.set_version_flag("--version", VersionLine, "print version, commit and build");
  app.set_help_flag("-h,--help", "print this help");
  app.formatter(MakeHelpFormatter());
  int exit_code = 0;
  for (const Verb& verb : Verbs()) {
    verb.add(*app.add_subcommand(verb.name, verb.description), exit_code);
  }
  if (argc < 2) {
    std::printf("%s", FirstScreen(DescribeVerb(app)).c_str());
    return kExitDone;
  }
  if (const auto error = ExceptionOf<CLI::ParseError>([&] { Parse(app, argc, argv); })) {
    return EndOfParsing(app, *error);
  }
  return exit_code;
}

}  // namespace

int RunCli(int argc, char** argv) {
  int exit_code = kExitDone;
  const std::optional<Error> error = Attempt([&] { exit_code = RunVerb(argc, argv); });
  if (!error) return exit_code;
  // Names of files and texts of servers may hold escapes.
  std::fprintf(stderr, "tandem: %s\n", VisibleText(error->what()).c_str());
  return ExitCodeOf(*error);
}

}  // namespace tandem::server
