// The paged cache of latents, and the rows of a step that read it.

#define WIDTH (LATENT + ROPE)
#define PAGE_TOKENS 64

// One row of a step.
struct Row {
    u32 position;
    u32 table;  // where its sequence's pages begin in `pages`
};
