// Products y = x Wᵀ of packed weights with vectors in split form: what is multiplied, and where results go.

struct Product {
    const u8* values;
    const u8* scales;
    float scale;  // the global scale, and the unit of the layout
    int layout;
    int order;     // of x
    u32 rows;      // rows of one product
    u32 cols;      // columns of the weight
    u32 row_first; // first row of head 0
    u32 row_head;  // rows from one head to the next
    const u16* x;  // [vectors, 3, x_width]
    u32 x_width;
    u32 x_head;          // columns of x from one head to the next
    const u32* gather;   // vector i is x[gather[i]]; null: x[i]
    float* y;            // [vectors, y_width], or null
    u16* y_split;        // the same in split form, or null
    int y_order;         // of y_split
    u32 y_width;
    u32 y_head;
    int accumulate;      // y += instead of y =
    u32 slices;
};

__device__ __forceinline__ void store_product(const Product& p, u32 vector, u32 head, u32 row, float value) {
    u32 column = head * p.y_head + row;
    if (p.y) {
        float* y = p.y + (u64)vector * p.y_width + column;
        *y = p.accumulate ? *y + value : value;
    }
    if (p.y_split) store_split(p.y_split + (u64)vector * TERMS * p.y_width, p.y_width, p.y_order, column, value);
}

// Two products that read the same vectors share a launch. Indexed where the parameters are: a copy would go to local memory.
struct Products {
    Product of[2];
};
