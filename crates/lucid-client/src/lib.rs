//! Asks any OpenAI-compatible server, in the dialects of vLLM, SGLang, llama.cpp and Lucid.
