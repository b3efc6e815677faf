#include "server/handlers/admin/convert_spec.h"

#include <nlohmann/json.hpp>

#include "convert/formats/check_spec.h"
#include "engine/base/attempt.h"
#include "server/handlers/handlers.h"
#include "server/jobs/job_supervisor.h"
#include "server/wire/field_reader.h"
#include "server/wire/job_spec.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const Json& RequiredObject(FieldReader& reader, const std::string& name) {
  const Json* object = reader.Object(name);
  if (object == nullptr) throw MissingField(name);
  return *object;
}

// The model that a name or an alias means; null if it is not loaded.
std::shared_ptr<const ServedModel> LoadedModel(const HandlerContext& context,
                                               const std::string& name) {
  const auto alias = context.models.FindAlias(name);
  const std::string& id = alias ? alias->target : name;
  return context.models.Contains(id) ? context.models.Look(id) : nullptr;
}

std::shared_ptr<const ServedModel> RequireLoaded(const HandlerContext& context,
                                                 const std::string& name, const char* param) {
  if (auto model = LoadedModel(context, name)) return model;
  throw Error(ErrorCode::kNotFound, "the model '" + name.substr(0, 120) + "' is not loaded")
      .WithParam(param)
      .WithReason("model_not_found");
}

fs::path FilesOf(const HandlerContext& context, const ServedModel& model) {
  return model.base ? fs::path(model.path) : fs::path(context.path_of_model(model));
}

// Resolves source.base for source.path: a path, or a loaded model if no such path exists.
fs::path BaseBesidePath(const HandlerContext& context, const std::string& base) {
  fs::path path;
  const auto no_such_path = ErrorOf(
      {ErrorCode::kNotFound}, [&] { path = ResolvePath(context.model_root, base, "source.base"); });
  if (!no_such_path) return path;
  const auto model = LoadedModel(context, base);
  if (model == nullptr) throw Error(*no_such_path);
  return FilesOf(context, *model);
}

void ReadSource(const HandlerContext& context, const Json& object, convert::ConvertSpec* spec) {
  FieldReader reader(object, "source");
  const std::optional<std::string> model_id = reader.String("model");
  const std::optional<std::string> path = reader.String("path");
  const std::optional<std::string> base = reader.String("base");
  RefuseUnknownFields(reader, "model, path and base");
  if (model_id.has_value() == path.has_value()) {
    throw BadValue("source", "source must have either model (the id of a loaded model) or path");
  }
  if (path) {
    spec->source = ResolvePath(context.model_root, *path, "source.path");
    if (base) spec->base = BaseBesidePath(context, *base);
    return;
  }
  const auto model = RequireLoaded(context, *model_id, "source.model");
  spec->source = FilesOf(context, *model);
  if (base) {
    spec->base = FilesOf(context, *RequireLoaded(context, *base, "source.base"));
  } else if (model->base) {
    spec->base = FilesOf(context, *model->base);
  }
}

void ReadTarget(const HandlerContext& context, const Json& object, convert::ConvertSpec* spec) {
  FieldReader reader(object, "target");
  spec->format = reader.RequiredString("format");
  const std::string name = reader.RequiredString("name");
  spec->dtype = reader.String("dtype").value_or("");
  spec->layout = reader.String("layout").value_or("");
  spec->peft.rank = reader.Int("rank", 1, convert::kMostRank).value_or(0);
  spec->peft.alpha = reader.Number("alpha", convert::kLeastAlpha, convert::kMostAlpha).value_or(0);
  RefuseUnknownFields(reader, "format, name, dtype, layout, rank and alpha");
  if (!IsTargetName(name)) {
    throw BadValue("target.name",
                   "target.name must be 1 to 128 characters of [A-Za-z0-9._-], not starting "
                   "with a dot, got " +
                       ShortForm(Json(name)));
  }
  spec->target =
      fs::absolute(context.model_root).lexically_normal() / convert::TargetName(spec->format, name);
}

}  // namespace

convert::ConvertSpec ConvertSpecOf(const HandlerContext& context, const Json& body) {
  convert::ConvertSpec spec;
  FieldReader reader(body);
  ReadTarget(context, RequiredObject(reader, "target"), &spec);
  ReadSource(context, RequiredObject(reader, "source"), &spec);
  spec.overwrite = reader.Bool("overwrite").value_or(false);
  spec.verify = reader.Bool("verify").value_or(true);
  spec.certificate = reader.Bool("certificate").value_or(true);
  spec.max_kl = reader.Number("max_kl", 0, convert::kMostKl);
  RefuseUnknownFields(reader, "source, target, overwrite, verify, certificate and max_kl");
  convert::CheckConvertSpec(spec);
  return spec;
}

}  // namespace tandem::server
