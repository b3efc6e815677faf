"""Multimodal models, of which the text part is served. Prompts have no ids of images or sounds.

Since its 4.52, transformers leaves out the logit_scale of Command R's text part; here it is 1.
"""

import transformers as tf

T = {"vocab_size": 1003, "max_position_embeddings": 256, "hidden_size": 48, "intermediate_size": 70,
     "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
     "pad_token_id": None}
EYES = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14}
CLIP = {**EYES, "model_type": "clip_vision_model", "num_hidden_layers": 2, "projection_dim": 16}
SIGLIP = {**EYES, "model_type": "siglip_vision_model"}
PIXTRAL = {**EYES, "model_type": "pixtral", "head_dim": 8}
INTERN = {**EYES, "image_size": [28, 28], "patch_size": [14, 14]}
QWEN2 = {"depth": 1, "embed_dim": 16, "hidden_size": 48, "num_heads": 2, "mlp_ratio": 2}
QWEN2_5 = {"depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 48,
           "fullatt_block_indexes": [0]}
QWEN3 = {"depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 48,
         "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
GLM = {"model_type": "glm4v_vision", "depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2,
       "out_hidden_size": 48, "image_size": 28}
IMAGE, IMAGE_INDEX = {"image_token_id": 5}, {"image_token_index": 5}
QWEN_IDS = {**IMAGE, "video_token_id": 6, "vision_start_token_id": 3, "vision_end_token_id": 4}
GLM_IDS = {**IMAGE, "video_token_id": 6, "image_start_token_id": 3, "image_end_token_id": 4,
           "video_start_token_id": 7, "video_end_token_id": 8}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}


def text(model_type, **fields):
    return {**T, "model_type": model_type, **fields}


def axes(section, theta=1000000.0, **fields):
    """A rope with an axis for each part of the frequencies."""
    return {"rope_type": "default", "rope_theta": theta, "mrope_section": section, **fields}


def qwen2_vl(config, model_type, eyes, **fields):
    return config(text_config=text(model_type, rope_parameters=axes([2, 2, 2]), **fields), vision_config=eyes,
                  **QWEN_IDS)


LATENT = {"num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 18, "qk_nope_head_dim": 10,
          "qk_rope_head_dim": 6, "v_head_dim": 16, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
          "first_k_dense_replace": 1, **EXPERTS}
DELTA = {"head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
         "linear_value_head_dim": 20}
INTERLEAVED = axes([4, 2, 2], 5000000.0, mrope_interleaved=True)
HALF = axes([1, 1, 1], 10000.0, partial_rotary_factor=0.5)

CASES = {
    "text of llava": lambda: tf.LlavaConfig(text_config=text("llama"), vision_config=CLIP, **IMAGE_INDEX),
    "text of llava, qwen2 tied": lambda: tf.LlavaConfig(
        text_config=text("qwen2", tie_word_embeddings=True), vision_config=CLIP, tie_word_embeddings=True,
        **IMAGE_INDEX),
    "text of llava, gemma-3": lambda: tf.LlavaConfig(
        text_config=text("gemma3_text", head_dim=12, sliding_window=13), vision_config=CLIP,
        tie_word_embeddings=True, **IMAGE_INDEX),
    "text of llava-next, mistral, window 17": lambda: tf.LlavaNextConfig(
        text_config=text("mistral", sliding_window=17), vision_config=CLIP, **IMAGE_INDEX),
    "text of llava-next-video": lambda: tf.LlavaNextVideoConfig(
        text_config=text("llama"), vision_config=CLIP, video_token_index=6, **IMAGE_INDEX),
    "text of llava-onevision": lambda: tf.LlavaOnevisionConfig(
        text_config=text("qwen2"), vision_config=SIGLIP, video_token_index=6, **IMAGE_INDEX),
    "text of vipllava": lambda: tf.VipLlavaConfig(
        text_config=text("llama"), vision_config=CLIP, vision_feature_layers=[-1, -2], **IMAGE_INDEX),
    "text of aya-vision": lambda: tf.AyaVisionConfig(
        text_config=text("cohere2", sliding_window=13, logit_scale=1.0), vision_config=SIGLIP, **IMAGE_INDEX),
    "text of command-a-vision": lambda: tf.Cohere2VisionConfig(
        text_config=text("cohere2", sliding_window=13, logit_scale=1.0), vision_config=SIGLIP, **IMAGE),
    "text of internvl": lambda: tf.InternVLConfig(text_config=text("qwen2"), vision_config=INTERN, **IMAGE),
    "text of idefics2": lambda: tf.Idefics2Config(
        text_config=text("mistral"), vision_config=EYES, perceiver_config={
            "hidden_size": 48, "resampler_n_latents": 2, "resampler_depth": 1, "resampler_n_heads": 2,
            "resampler_head_dim": 8, "num_key_value_heads": 1}, **IMAGE),
    "text of idefics3": lambda: tf.Idefics3Config(text_config=text("llama"), vision_config=EYES, **IMAGE),
    "text of smolvlm": lambda: tf.SmolVLMConfig(
        text_config=text("llama"), vision_config=EYES, tie_word_embeddings=True, **IMAGE),
    "text of lfm2-vl": lambda: tf.Lfm2VlConfig(
        text_config=text("lfm2", layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False),
        vision_config={**EYES, "model_type": "siglip2_vision_model", "num_patches": 4}, **IMAGE),
    "text of qwen2-vl": lambda: qwen2_vl(tf.Qwen2VLConfig, "qwen2_vl_text", QWEN2),
    "text of qwen2-vl, tied, window 19": lambda: tf.Qwen2VLConfig(
        text_config=text("qwen2_vl_text", rope_parameters=axes([2, 2, 2]), use_sliding_window=True, sliding_window=19,
                         max_window_layers=1), vision_config=QWEN2, tie_word_embeddings=True, **QWEN_IDS),
    "text of qwen2.5-vl": lambda: qwen2_vl(tf.Qwen2_5_VLConfig, "qwen2_5_vl_text", QWEN2_5),
    "text of qwen3-vl": lambda: tf.Qwen3VLConfig(
        text_config=text("qwen3_vl_text", head_dim=16, rope_parameters=dict(INTERLEAVED)), vision_config=QWEN3,
        **QWEN_IDS),
    "text of qwen3-vl with experts": lambda: tf.Qwen3VLMoeConfig(
        text_config=text("qwen3_vl_moe_text", head_dim=16, num_experts=6, rope_parameters=dict(INTERLEAVED),
                         **EXPERTS), vision_config=QWEN3, **QWEN_IDS),
    "text of glm-4.1v": lambda: tf.Glm4vConfig(
        text_config=text("glm4v_text", rope_parameters=dict(HALF)), vision_config=GLM, **GLM_IDS),
    "text of glm-4.6v": lambda: tf.Glm46VConfig(
        text_config=text("glm4v_text", rope_parameters=dict(HALF)), vision_config=GLM, **GLM_IDS),
    "text of glm-4.5v": lambda: tf.Glm4vMoeConfig(
        text_config=text("glm4v_moe_text", n_routed_experts=6, rope_parameters=dict(HALF), **EXPERTS),
        vision_config={**GLM, "model_type": "glm4v_moe_vision"}, **GLM_IDS),
    "text of glm-ocr": lambda: tf.GlmOcrConfig(
        text_config=text("glm_ocr_text", rope_parameters=axes([2, 2, 2], 10000.0)),
        vision_config={**GLM, "model_type": "glm_ocr_vision"}, video_token_id=6, **IMAGE),
    "text of got-ocr2": lambda: tf.GotOcr2Config(
        text_config=text("qwen2"), tie_word_embeddings=False, vision_config={
            "hidden_size": 16, "output_channels": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 16, "mlp_dim": 20, "global_attn_indexes": [0], "window_size": 2},
        **IMAGE_INDEX),
    "text of lighton-ocr": lambda: tf.LightOnOcrConfig(
        text_config=text("qwen3", head_dim=16), vision_config=PIXTRAL, **IMAGE),
    "text of kimi-k2.5": lambda: tf.Kimi_K25Config(
        text_config=text("deepseek_v3", **{**LATENT, "num_hidden_layers": 2}), vision_config={
            "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}, **IMAGE),
    "text of exaone-4.5": lambda: tf.Exaone4_5_Config(
        text_config=text("exaone4", sliding_window=13), vision_config=QWEN2_5, video_token_id=6, **IMAGE),
    "text of video-llama-3": lambda: tf.VideoLlama3Config(
        text_config=text("qwen2"), vision_config=EYES, video_token_id=6, **IMAGE),
    "text of ovis2": lambda: tf.Ovis2Config(
        text_config=text("qwen2"), vision_config={**EYES, "vocab_size": 20, "num_visual_indicator_tokens": 5},
        visual_indicator_token_ids=[6, 7, 8, 9, 3], vocab_size=1003, hidden_size=48, **IMAGE),
    "text of minicpm-v-4.6": lambda: tf.MiniCPMV4_6Config(
        text_config=text("qwen3_5_text", **DELTA), vision_config={**EYES, "num_hidden_layers": 2},
        insert_layer_id=0, **IMAGE),
    "text of granite-docling": lambda: tf.GraniteDoclingConfig(
        text_config=text("granite_docling_text", attention_multiplier=0.2),
        vision_config={**EYES, "out_hidden_size": 48}, **IMAGE),
    "text of granite-speech": lambda: tf.GraniteSpeechConfig(
        text_config=text("granite", attention_multiplier=0.2), encoder_config={
            "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "dim_head": 8, "input_dim": 8, "output_dim": 8,
            "context_size": 8}, projector_config={
            "model_type": "blip_2_qformer", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 20, "encoder_hidden_size": 16}, audio_token_index=5, has_lora_adapter=False),
    "text of voxtral": lambda: tf.VoxtralConfig(
        text_config=text("llama"), audio_config={
            "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_mel_bins": 8, "max_source_positions": 16}, audio_token_id=5),
    "text of qwen2-audio": lambda: tf.Qwen2AudioConfig(
        text_config=text("qwen2"), audio_config={
            "d_model": 16, "encoder_ffn_dim": 20, "encoder_layers": 1, "encoder_attention_heads": 2,
            "num_mel_bins": 8, "max_source_positions": 16}, audio_token_index=5),
}

KINDS = {
    "llava": tf.LlavaForConditionalGeneration, "llava_next": tf.LlavaNextForConditionalGeneration,
    "llava_next_video": tf.LlavaNextVideoForConditionalGeneration,
    "llava_onevision": tf.LlavaOnevisionForConditionalGeneration, "vipllava": tf.VipLlavaForConditionalGeneration,
    "aya_vision": tf.AyaVisionForConditionalGeneration, "cohere2_vision": tf.Cohere2VisionForConditionalGeneration,
    "internvl": tf.InternVLForConditionalGeneration, "idefics2": tf.Idefics2ForConditionalGeneration,
    "idefics3": tf.Idefics3ForConditionalGeneration, "smolvlm": tf.SmolVLMForConditionalGeneration,
    "lfm2_vl": tf.Lfm2VlForConditionalGeneration, "qwen2_vl": tf.Qwen2VLForConditionalGeneration,
    "qwen2_5_vl": tf.Qwen2_5_VLForConditionalGeneration, "qwen3_vl": tf.Qwen3VLForConditionalGeneration,
    "qwen3_vl_moe": tf.Qwen3VLMoeForConditionalGeneration, "glm4v": tf.Glm4vForConditionalGeneration,
    "glm46v": tf.Glm46VForConditionalGeneration, "glm4v_moe": tf.Glm4vMoeForConditionalGeneration,
    "glm_ocr": tf.GlmOcrForConditionalGeneration, "got_ocr2": tf.GotOcr2ForConditionalGeneration,
    "lighton_ocr": tf.LightOnOcrForConditionalGeneration, "kimi_k25": tf.Kimi_K25ForConditionalGeneration,
    "exaone4_5": tf.Exaone4_5_ForConditionalGeneration,
    "video_llama_3": tf.VideoLlama3ForConditionalGeneration, "ovis2": tf.Ovis2ForConditionalGeneration,
    "minicpmv4_6": tf.MiniCPMV4_6ForConditionalGeneration,
    "granite_docling": tf.GraniteDoclingForConditionalGeneration,
    "granite_speech": tf.GraniteSpeechForConditionalGeneration, "voxtral": tf.VoxtralForConditionalGeneration,
    "qwen2_audio": tf.Qwen2AudioForConditionalGeneration,
}


def flat(config):
    """Published files of Qwen2-VL have the keys of the text part outside of it."""
    out = dict(config)
    inner = out.pop("text_config")
    rope = dict(inner.pop("rope_scaling", None) or {})
    out.update({key: value for key, value in inner.items() if key not in ("model_type", "tie_word_embeddings")})
    rope.pop("rope_type", None)
    out["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 2, 2], **rope}
    return out


def kimi_layers(tensors):
    """Published files call the layers of the text `layers`; transformers saves the eyes' name for them."""
    return {name.replace("language_model.model.blocks.", "language_model.model.layers."): each
            for name, each in tensors.items()}


def inputs_first(tensors):
    """Published experts of Qwen3-VL have the inputs first; transformers 5 saves the outputs first."""
    return {name: each.mT.contiguous() if ".experts." in name and not isinstance(each, str) else each
            for name, each in tensors.items()}


PUBLISH = {"text of kimi-k2.5": (lambda config: config, kimi_layers),
           "text of qwen3-vl with experts": (lambda config: config, inputs_first)}
OLDER = {"qwen2_vl": flat, "qwen2_5_vl": flat}
