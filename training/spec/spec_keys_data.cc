// Keys of the data, and of learning from pairs of answers.

#include "training/spec/spec_sections.h"

namespace tandem::training {

// clang-format off
namespace {

template <class Field>
SpecValue Container(Field field) {
  return Choice<RowContainer>(field, {{"auto", RowContainer::kAuto},
                                      {"json", RowContainer::kJson},
                                      {"csv", RowContainer::kCsv},
                                      {"parquet", RowContainer::kParquet}});
}

SpecValue MixtureWeights() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            std::vector<double> weights;
            for (const std::string& word : given.words) {
              weights.push_back(ParseNumber(word));
              CheckRange(weights.back(), 1e-6, kBig);
            }
            spec.data.mixture_weights = std::move(weights);
          },
          [](const TrainSpec& spec) {
            std::vector<std::string> words;
            for (const double weight : spec.data.mixture_weights) words.push_back(ShowNumber(weight));
            return ShowList(words);
          },
          "a list of positive numbers"};
}

}  // namespace

std::vector<SpecKey> DataKeys() {
  return {
    {{"data.train", "dataset_path", "train_files", "data.path", "hf_train_files"},
     Paths(FIELD(data.train)),
     "text file with samples between delimiter lines, files of rows (JSONL, JSON, CSV, Parquet; "
     "a directory, a pattern with `*` and `?`, or a list), or prepared file (`tandem data prepare`)",
     kRequired},
    {{"data.source", "dataset_type"},
     {[](TrainSpec& spec, const GivenValue& given) {
        spec.data.synthetic = ScalarText(given) == "synthetic";
      }, [](const TrainSpec& spec) {
        return std::string(spec.data.synthetic ? "synthetic" : "files");
      }, "text"},
     "synthetic: 64 samples of random tokens instead of data.train; other values (MaxText's hf, "
     "grain, tfds) mean files, whose format is detected"},
    {{"data.eval", "eval_dataset_path", "eval_files", "hf_eval_files"}, Paths(FIELD(data.eval)),
     "data of the evaluations, in the same forms", "none"},
    {{"data.hf_path", "hf_path"}, Path(FIELD(data.hf_path)),
     "directory of a data set in the hub's layout: default of `data.train`, and with "
     "`data.eval_split` of `data.eval`",
     "none"},
    {{"data.train_split", "train_split"}, Text(FIELD(data.train_split)),
     "split of the directory to train on", "the only split"},
    {{"data.eval_split", "eval_split", "hf_eval_split"}, Text(FIELD(data.eval_split)),
     "split of the directory for `data.eval`", "the only split"},
    {{"data.container"}, Container(FIELD(data.container)),
     "container of the rows of data.train; auto: by the file's extension, JSON without one"},
    {{"data.eval_container"}, Container(FIELD(data.eval_container)),
     "container of the rows of data.eval, as data.container"},
    {{"data.format"},
     Choice<RowFormat>(FIELD(data.format), {{"auto", RowFormat::kAuto},
                                            {"plain", RowFormat::kPlain},
                                            {"text", RowFormat::kText},
                                            {"messages", RowFormat::kMessages},
                                            {"sharegpt", RowFormat::kShareGpt},
                                            {"alpaca", RowFormat::kInstruction},
                                            {"prompt_completion", RowFormat::kPromptCompletion},
                                            {"preference", RowFormat::kPreference},
                                            {"openai_preference", RowFormat::kOpenAiPreference}}),
     "format of a row, see data/README.md; auto: detected from the file name and the first rows"},
    {{"data.columns", "train_data_columns"}, Names(FIELD(data.columns)),
     "names of the format's columns, in the format's order", "the format's"},
    {{"data.eval_columns", "eval_data_columns"}, Names(FIELD(data.eval_columns)),
     "names of the columns of data.eval", "data.columns"},
    {{"data.train_on_completion_only", "sft_train_on_completion_only"},
     {[](TrainSpec& spec, const GivenValue& given) {
        spec.data.train_on_completion_only = ParseBool(ScalarText(given));
      }, [](const TrainSpec& spec) {
        const auto& value = spec.data.train_on_completion_only;
        return std::string(!value ? "" : *value ? "true" : "false");
      }, "true or false"},
     "learn the answers only, not the prompts", "true; false for train.pretrain"},
    {{"data.apply_template"},
     Choice<ApplyTemplate>(FIELD(data.apply_template), {{"auto", ApplyTemplate::kAuto},
                                                        {"always", ApplyTemplate::kAlways},
                                                        {"never", ApplyTemplate::kNever}}),
     "render alpaca rows and plain prompts as chats; auto: alpaca rows only, if the model has a "
     "chat template"},
    {{"data.turns"},
     Choice<Turns>(FIELD(data.turns), {{"auto", Turns::kAuto},
                                       {"together", Turns::kTogether},
                                       {"apart", Turns::kApart}}),
     "a chat is one sample, or each answer is one; auto: one sample, or apart if the template "
     "rewrites earlier turns"},
    {{"data.on_bad_row"},
     Choice<OnBadRow>(FIELD(data.on_bad_row), {{"error", OnBadRow::kError},
                                               {"skip", OnBadRow::kSkip}}),
     "reaction to bad rows: end the run before step 0, or skip them"},
    {{"data.template_unix_s"}, Integer(FIELD(data.template_unix_s), 0, 0x1p40),
     "time that chat templates see, in seconds since 1970; fixed, so that samples never change"},
    {{"data.delimiter"}, Text(FIELD(data.delimiter)), "line between samples"},
    {{"data.header"},
     Choice<Header>(FIELD(data.header),
                    {{"none", Header::kNone}, {"content_words", Header::kContentWords}}),
     "text put before every sample, see data/README.md"},
    {{"data.add_bos", "add_bos"}, Bool(FIELD(data.add_bos)), "samples begin with bos_token"},
    {{"data.add_eos", "add_eos"}, Bool(FIELD(data.add_eos)), "samples end with eos_token"},
    {{"data.eos_token"}, Text(FIELD(data.eos_token)), "text of that token",
     "the tokenizer's, else the delimiter"},
    {{"data.bos_token"}, Text(FIELD(data.bos_token)), "text of that token",
     "the tokenizer's, else eos_token"},
    {{"data.max_target_length", "max_target_length"},
     Integer(FIELD(data.max_target_length), 2, 1 << 24),
     "tokens per packed row; with train.dpo per answer with its prompt, and a row holds two"},
    {{"data.packing", "grain_packing_type"},
     Choice<Packing>(FIELD(data.packing), {{"none", Packing::kNone},
                                           {"concat_then_split", Packing::kConcatThenSplit},
                                           {"first_fit", Packing::kFirstFit},
                                           {"best_fit", Packing::kBestFit}}),
     "placement of samples in rows"},
    {{"packing"},
     {[](TrainSpec& spec, const GivenValue& given) {
        if (!ParseBool(ScalarText(given))) spec.data.packing = Packing::kNone;
      }, nullptr, "true or false"},
     "MaxText's switch: false means `data.packing` none", "true"},
    {{"data.overflow"},
     Choice<Overflow>(FIELD(data.overflow), {{"truncate", Overflow::kTruncate},
                                             {"truncate_left", Overflow::kTruncateLeft},
                                             {"drop", Overflow::kDrop},
                                             {"error", Overflow::kError},
                                             {"split", Overflow::kSplit}}),
     "handling of samples longer than a row; truncate_left keeps their ends"},
    {{"data.max_segments_per_seq", "max_segments_per_seq"},
     IntegerOrMinusOne(FIELD(data.max_segments_per_seq), 1 << 20), "most samples in a row; 0: 64"},
    {{"data.shuffle", "enable_data_shuffling"}, Bool(FIELD(data.shuffle)),
     "draw a new order of samples in every epoch"},
    {{"data.order"}, Choice<OrderKind>(FIELD(data.order), {{"permuted", OrderKind::kPermuted},
                                                           {"grain", OrderKind::kGrain}}),
     "order of shuffled samples; grain: that of MaxText's Grain pipelines with the same seed"},
    {{"data.shuffle_window"}, Integer(FIELD(data.shuffle_window), 0, kBig),
     "shuffle within windows of this many consecutive samples only; 0: the whole epoch"},
    {{"data.mixture_weights"}, MixtureWeights(),
     "weights of the paths of data.train, which are then sets of their own; each is repeated as "
     "often as needed, and an epoch is as many samples as all sets have",
     "one set"},
    {{"data.loss_mask"}, Choice<LossMask>(FIELD(data.loss_mask), {{"trained", LossMask::kTrained},
                                                                  {"all", LossMask::kAll}}),
     "tokens of the mean loss; all: every token and the padding of short rows (id 0), as in "
     "pipelines without a mask; needs data.packing none"},
    {{"data.seed", "data_shuffle_seed"}, Integer(FIELD(data.seed), 0, kBig),
     "seed of the order and of dropout"},
    {{"data.num_epoch", "num_epoch"}, Integer(FIELD(data.num_epoch), 0, kBig),
     "epochs after which the run ends; 0: unlimited"},
  };
}

std::vector<SpecKey> DpoKeys() {
  return {
    {{"dpo.beta", "dpo.dpo_beta", "dpo_beta"}, Number(FIELD(dpo.loss.beta), 1e-6, 100),
     "train.dpo: weight of the distance from the reference"},
    {{"dpo.label_smoothing", "dpo.dpo_label_smoothing", "dpo_label_smoothing"},
     Number(FIELD(dpo.loss.label_smoothing), 0, 0.499),
     "train.dpo: assumed fraction of pairs with a wrong preference"},
    {{"dpo.max_prompt_length", "max_prompt_length"},
     Integer(FIELD(dpo.max_prompt_length), 0, 1 << 24),
     "train.dpo: longest prompt in tokens; longer ones keep their last tokens; 0: no limit"},
    {{"dpo.orpo_lambda"}, Number(FIELD(dpo.loss.orpo_lambda), 1e-6, 100),
     "train.dpo with orpo: weight of the odds ratio"},
    {{"dpo.algo", "dpo.loss_type"},
     Choice<PairAlgorithm>(FIELD(dpo.loss.algorithm), {{"dpo", PairAlgorithm::kDpo},
                                                       {"sigmoid", PairAlgorithm::kDpo},
                                                       {"ipo", PairAlgorithm::kIpo},
                                                       {"orpo", PairAlgorithm::kOrpo}}),
     "train.dpo: loss over pairs; ipo averages over tokens as trl does, orpo has no reference"},
  };
}

std::vector<SpecKey> DistillKeys() {
  return {
    {{"distill.teacher_url", "teacher_model_server_url"}, Text(FIELD(distill.teacher_url)),
     "train.distill: base URL of the OpenAI-compatible server of the teacher, such as "
     "http://127.0.0.1:8080/v1",
     "must be given for train.distill"},
    {{"distill.teacher_model"}, Text(FIELD(distill.teacher_model)),
     "train.distill: name of the teacher on that server", "the server's only model"},
    {{"distill.teacher_key_file"}, Path(FIELD(distill.teacher_key_file)),
     "train.distill: file with the server's key", "the variable TANDEM_TEACHER_KEY"},
    {{"distill.alpha", "distill_alpha"}, Number(FIELD(distill.loss.alpha), 0, 1),
     "train.distill: weight of the teacher's distribution in the loss; the rest is the weight of "
     "cross-entropy"},
    {{"distill.temperature", "distill_temperature"},
     Number(FIELD(distill.loss.temperature), 0.01, 100),
     "train.distill: temperature of both distributions"},
    {{"distill.top_k", "distill_teacher_top_k", "loss_top_k"},
     Integer(FIELD(distill.loss.top_k), 1, 1024),
     "train.distill: likeliest tokens of the teacher per position; a Tandem server gives at most "
     "20"},
  };
}
// clang-format on

}  // namespace tandem::training
