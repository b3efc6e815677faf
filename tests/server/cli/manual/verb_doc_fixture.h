#pragma once

#include "server/cli/manual/verb_doc.h"

namespace tandem::server {

// A program with a verb that has flags of every kind, and a nested verb.
inline VerbDoc SmallProgram() {
  const OptionDoc help{.flags = {"-h", "--help"}, .help = "print this help and exit"};
  VerbDoc pack{.path = "tandem pack", .name = "pack", .summary = "pack the weights of a model"};
  pack.arguments = {{.name = "source",
                     .value = "TEXT",
                     .kind = ValueKind::kFile,
                     .help = "model's path",
                     .is_required = true}};
  pack.flags = {
      help,
      {.flags = {"-d", "--dtype"},
       .value = "WORD",
       .choices = {"int8", "int4"},
       .default_text = "int8",
       .help = "weight type"},
      {.flags = {"--out"},
       .value = "DIR",
       .kind = ValueKind::kDirectory,
       .help = "directory [new]: .dot 'quoted' \\back"},
      {.flags = {"--threads"}, .value = "N", .limits = "from 0 to 9", .help = "compute threads"}};
  VerbDoc list{.path = "tandem box ls", .name = "ls", .summary = "list a box"};
  list.flags = {help};
  VerbDoc box{.path = "tandem box", .name = "box", .summary = "look into boxes"};
  box.flags = {help};
  box.verbs = {list};
  VerbDoc root{.path = "tandem", .name = "tandem", .summary = "Trains and serves."};
  root.flags = {help};
  root.verbs = {pack, box};
  return root;
}

}  // namespace tandem::server
